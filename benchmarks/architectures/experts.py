"""Mixtures of experts, with and without a loss for even routing."""

from __future__ import annotations

from .records import next_words, translation
from .sizes import line, lines

NEXT, EVEN = "next words", {"output_router_logits": True, "router_aux_loss_coef": 0.02}

LINES = (
    *lines(
        NEXT,
        next_words,
        "MixtralForCausalLM Qwen2MoeForCausalLM Qwen3MoeForCausalLM GptOssForCausalLM "
        "OlmoeForCausalLM PhimoeForCausalLM GraniteMoeForCausalLM GraniteMoeSharedForCausalLM "
        "Llama4ForCausalLM Ernie4_5_MoeForCausalLM FlexOlmoForCausalLM Glm4MoeForCausalLM "
        "Dots1ForCausalLM MiniMaxM2ForCausalLM JetMoeForCausalLM",
    ),
    line(NEXT, next_words, "DeepseekV2ForCausalLM", num_key_value_heads=4, head_dim=16),
    line(NEXT, next_words, "DeepseekV3ForCausalLM", num_key_value_heads=4, head_dim=8),
    line(NEXT, next_words, "MixtralForCausalLM, even routing", **EVEN),
    line(NEXT, next_words, "Qwen3MoeForCausalLM, even routing", **EVEN),
    line(NEXT, next_words, "GptOssForCausalLM, even routing", **EVEN),
    line(NEXT, next_words, "OlmoeForCausalLM, even routing", **EVEN),
    line("sequences", translation, "SwitchTransformersForConditionalGeneration",
         decoder_start_token_id=1, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
         expert_capacity=64),
    line("sequences", translation, "NllbMoeForConditionalGeneration", expert_capacity=64,
         encoder_sparse_step=1, decoder_sparse_step=1, encoder_layerdrop=0.0,
         decoder_layerdrop=0.0),
)  # fmt: skip
