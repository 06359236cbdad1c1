"""State spaces, linear attention, and hybrids of them with attention."""

from __future__ import annotations

from .records import next_words, whole_language
from .sizes import line

NEXT = "next words"
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_chunk_size": 8}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

LINES = (
    line(NEXT, next_words, "MambaForCausalLM", state_size=8),
    line(NEXT, next_words, "Mamba2ForCausalLM", state_size=8, num_heads=4, head_dim=16,
         chunk_size=8, n_groups=1),
    line(NEXT, next_words, "FalconMambaForCausalLM", state_size=8),
    line(NEXT, whole_language, "RwkvForCausalLM", attention_hidden_size=32),
    line(NEXT, next_words, "RecurrentGemmaForCausalLM", lru_width=32, use_cache=False),
    line(NEXT, next_words, "JambaForCausalLM", attn_layer_period=2, attn_layer_offset=1,
         mamba_d_state=8, use_mamba_kernels=False),
    line(NEXT, next_words, "BambaForCausalLM", attn_layer_indices=[1], **MAMBA, mamba_n_groups=1),
    line(NEXT, next_words, "FalconH1ForCausalLM", **MAMBA, mamba_d_ssm=64, mamba_n_groups=1),
    line(NEXT, next_words, "GraniteMoeHybridForCausalLM", layer_types=["mamba", "attention"],
         **MAMBA, mamba_n_groups=1),
    line(NEXT, next_words, "ZambaForCausalLM", num_hidden_layers=6, mamba_d_state=8,
         n_mamba_heads=2, use_mamba_kernels=False,
         layer_types=["mamba", "hybrid", "mamba", "mamba", "hybrid", "mamba"],
         num_key_value_heads=4,
         attention_hidden_size=64, attention_head_dim=16),
    line(NEXT, next_words, "Zamba2ForCausalLM", num_hidden_layers=3, mamba_d_state=8,
         n_mamba_heads=4, mamba_headdim=16, chunk_size=8, mamba_ngroups=1,
         layers_block_type=["mamba", "hybrid", "mamba"], layer_types=["mamba", "hybrid", "mamba"],
         num_key_value_heads=4, use_mem_rope=False, num_mem_blocks=1, adapter_rank=4),
    line(NEXT, next_words, "NemotronHForCausalLM", mamba_num_heads=4, mamba_head_dim=16,
         ssm_state_size=8, n_groups=1, chunk_size=8),
    line(NEXT, next_words, "Qwen3NextForCausalLM", **MIXED, **DELTA),
    line(NEXT, next_words, "OlmoHybridForCausalLM", **MIXED, **DELTA),
    line(NEXT, next_words, "KimiLinearForCausalLM", **MIXED, num_key_value_heads=4, head_dim=8,
         linear_head_dim=8, linear_num_heads=4),
    line(NEXT, next_words, "MiniMaxForCausalLM"),
    line(NEXT, next_words, "Lfm2ForCausalLM"),
    line(NEXT, whole_language, "xLSTMForCausalLM", chunk_size=8, num_blocks=2, num_heads=4,
         mode="train", return_last_states=True, use_cache=False, qk_dim_factor=1.0,
         v_dim_factor=1.0),
)  # fmt: skip
