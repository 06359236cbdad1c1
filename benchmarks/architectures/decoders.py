"""Decoders: language models, and classes by their last token."""

from __future__ import annotations

from .records import LONGEST, class_of_text, next_words, whole_language
from .sizes import line, lines

NEXT, CLASS = "next words", "classes"

LINES = (
    *lines(
        NEXT,
        next_words,
        "GPT2LMHeadModel LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM "
        "GemmaForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM PhiForCausalLM Phi3ForCausalLM "
        "FalconForCausalLM BloomForCausalLM MptForCausalLM GPTNeoXForCausalLM "
        "GPTBigCodeForCausalLM CodeGenForCausalLM GPTJForCausalLM "
        "Starcoder2ForCausalLM CohereForCausalLM Cohere2ForCausalLM OlmoForCausalLM "
        "Olmo2ForCausalLM Olmo3ForCausalLM GraniteForCausalLM StableLmForCausalLM "
        "NemotronForCausalLM GlmForCausalLM Glm4ForCausalLM SmolLM3ForCausalLM "
        "DiffLlamaForCausalLM BitNetForCausalLM XGLMForCausalLM BioGptForCausalLM "
        "OpenAIGPTLMHeadModel CTRLLMHeadModel PersimmonForCausalLM HeliumForCausalLM "
        "Exaone4ForCausalLM Ernie4_5ForCausalLM SeedOssForCausalLM ModernBertDecoderForCausalLM",
    ),
    line(NEXT, next_words, "CpmAntForCausalLM", lengths=(LONGEST,)),
    line(NEXT, next_words, "OPTForCausalLM", word_embed_proj_dim=32, ffn_dim=48),
    line(NEXT, next_words, "OPTForCausalLM, LayerDrop", word_embed_proj_dim=32, ffn_dim=48,
         layerdrop=0.5, num_hidden_layers=4),
    line(NEXT, next_words, "GPTNeoForCausalLM", attention_types=[[["global", "local"], 1]],
         num_layers=2, window_size=8),
    line(NEXT, whole_language, "ReformerModelWithLMHead", is_decoder=True, attention_head_size=8,
         axial_pos_shape=[4, 4], axial_pos_embds_dim=[16, 16], num_buckets=4,
         lsh_attn_chunk_length=4, local_attn_chunk_length=4, feed_forward_size=48),
    line(NEXT, next_words, "MiniCPM3ForCausalLM", num_key_value_heads=4, head_dim=16),
    *lines(CLASS, class_of_text, "GPT2ForSequenceClassification LlamaForSequenceClassification "
           "Qwen3ForSequenceClassification Gemma2ForSequenceClassification"),
)  # fmt: skip
