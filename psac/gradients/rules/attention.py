"""Scaled dot product attention, by the kernel that torch would take for a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.rules.physical import are_records, physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder


def attention(
    rec: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """[..., heads, positions, features] for each record; records become more of the batch."""
    inputs = [query, key, value]
    if not any(are_records(*inputs)) or not rec.serves(*inputs, attn_mask):
        return NotImplemented
    if min(t.dim() for t in inputs) < 2:
        raise RuntimeError("attention takes tensors of two axes or more: [positions, features]")
    if dropout_p and rec.randomness == "same":
        return NotImplemented  # torch draws once for all records there
    if torch.is_grad_enabled():
        inputs = [
            rec.copies(t, "attention") if t.requires_grad and are_records(t) == [False] else t
            for t in inputs
        ]
        if attn_mask is not None and attn_mask.requires_grad and are_records(attn_mask) == [False]:
            attn_mask = rec.copies(attn_mask, "attention")
    with physically():
        q, k, v = (
            rec.physical(t) if are_records(t)[0] else t.expand(rec.num_samples, *t.shape)
            for t in inputs
        )
        leading = q.shape[:-3] if q.dim() > 3 else q.shape[:1]
        if any(t.dim() != q.dim() or t.shape[: len(leading)] != leading for t in (k, v)):
            return NotImplemented  # folded, the records of one would be broadcast to another's
        mask = None
        if attn_mask is not None:
            mask = mask_for(rec, attn_mask, q, leading)
        folded = [t.reshape(-1, *t.shape[len(leading) :]) for t in (q, k, v)]
        y = F.scaled_dot_product_attention(
            *folded, attn_mask=mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa,
        )  # fmt: skip
        return rec.of_records(y.reshape(*leading, *y.shape[1:]))


def is_packed(rec: Recorder, *_: Any) -> bool:
    """Whether nn.TransformerEncoder leaves padding out, as it does in inference: not here."""
    return False


def mask_for(rec: Recorder, mask: Tensor, query: Tensor, leading: torch.Size) -> Tensor:
    """The mask, with records folded into its batch as into that of the query."""
    if are_records(mask) == [False]:
        if mask.dim() <= query.dim() - len(leading):
            return mask  # torch broadcasts it
        value = mask.expand(rec.num_samples, *mask.shape)
    else:
        value = rec.physical(mask)
    inner = query.dim() - 1  # axes that the mask may have beside that of records
    while value.dim() - 1 < inner:
        value = value.unsqueeze(1)
    rest = value.shape[len(leading) :]
    return value.expand(*leading, *rest).reshape(-1, *rest)
