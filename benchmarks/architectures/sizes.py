"""How a class of transformers is made small: SMALL, as far as its configuration knows the names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .records import Record

LARGEST = 4_000_000  # parameters
SMALL: dict[str, Any] = {
    # text
    "vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 8, "embedding_size": 16,
    # GPT and its heirs
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48, "dim": 32,
    "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "rotary_dim": 4,
    # encoder and decoder
    "d_model": 32, "d_ff": 48, "d_kv": 8, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "decoder_start_token_id": 1, "num_layers": 1, "num_heads": 4,
    "num_decoder_layers": 1,
    # experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "shared_expert_intermediate_size": 32,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": 8,
    "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    # pictures
    "image_size": 32, "patch_size": 4, "num_labels": 2,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One line: a class, its task, its records, and its settings."""

    name: str
    task: str
    records: Callable[[], list[Record]]
    settings: dict[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] | None = None  # public, for a loss that changes with padding

    @property
    def kind(self) -> str:
        """The class of transformers: a name may say more than that, behind a comma."""
        return self.name.split(",")[0]

    def build(self, *, seed: int = 0) -> tuple[nn.Module, list[Record]]:
        """The model, in training mode, and its records; the same seed gives the same."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return tiny(self.kind, self.settings).train(), self.records()


def tiny(kind: str, settings: dict[str, Any]) -> nn.Module:
    """The class with a small configuration; None leaves a setting of SMALL out."""
    import transformers

    model: Any = getattr(transformers, kind)
    known = names_of(model.config_class)
    chosen = {name: value for name, value in SMALL.items() if name in known}
    for alias, name in model.config_class.attribute_map.items():
        if name in chosen:
            chosen.pop(alias, None)
    merged = {k: v for k, v in {**chosen, **settings}.items() if v is not None}
    config = model.config_class(**{k: v for k, v in merged.items() if k != "config"})
    with torch.device("meta"):
        size = sum(p.numel() for p in model(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{kind} has {size} parameters: make it smaller.")
    return model(config)


def names_of(config: Any) -> set[str]:
    """The settings that a class of configurations knows."""
    fields = {name for base in config.__mro__ for name in getattr(base, "__annotations__", {})}
    return fields | set(config.attribute_map)


def line(
    task: str,
    records: Callable[[], list[Record]],
    name: str,
    lengths: tuple[int, ...] | None = None,
    **settings: Any,
) -> Architecture:
    return Architecture(name=name, task=task, records=records, settings=settings, lengths=lengths)


def lines(
    task: str, records: Callable[[], list[Record]], names: str, **settings: Any
) -> list[Architecture]:
    """Several classes with the same records and settings."""
    return [line(task, records, name, **settings) for name in names.split()]
