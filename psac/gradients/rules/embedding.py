"""Embedding tables: the gradient of a table has as many rows as the record has distinct tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..lookup import Lookup
from .physical import are_records, detached, physically

if TYPE_CHECKING:
    from ..recorder import Recorder, Uses


def embedding(
    rec: Recorder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Also of indices that are the same for all records, such as positions."""
    if scale_grad_by_freq or any(are_records(weight)) or not rec.serves(weight, indices):
        return NotImplemented
    shared = are_records(indices) == [False]
    if shared and not weight.requires_grad:
        return NotImplemented
    with physically():
        (table,) = detached(weight)
        index = indices if shared else rec.physical(indices)
        y = torch.embedding(table, index)
        if shared:
            index, y = (t.expand(rec.num_samples, *t.shape) for t in (index, y))

        def uses(grad: Tensor) -> Uses:
            rows = index.masked_fill(index == padding_idx, -1) if padding_idx >= 0 else index
            rows = rows.reshape(rec.num_samples, -1)
            yield weight, Lookup(rows, grad.reshape(*rows.shape, -1), len(weight))

        return rec.of_records(rec.tap("embedding", y, [weight], uses, [index]))


def embedding_bag(
    rec: Recorder,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Bags of a fixed length, [bags, length]: rows are looked up and reduced."""
    if offsets is not None or input.dim() != 2 or scale_grad_by_freq or max_norm is not None:
        return NotImplemented
    if are_records(input) != [True] or any(are_records(weight)):
        return NotImplemented
    if mode == "max":
        with rec:
            return bag_of_largest(input, weight, padding_idx)
    if not rec.serves(input, weight, per_sample_weights):
        return NotImplemented
    if per_sample_weights is not None and per_sample_weights.requires_grad:
        per_sample_weights = rec.copies(per_sample_weights, "embedding_bag")
    with physically():
        x, n = rec.physical(input), rec.num_samples
        x_bl = x.flatten(0, 1)
        factors = None
        if per_sample_weights is not None:
            shared = are_records(per_sample_weights) == [False]
            factors = (
                per_sample_weights.expand(x.shape) if shared else rec.physical(per_sample_weights)
            ).flatten(0, 1)
        y = F.embedding_bag(
            x_bl, detached(weight)[0], mode=mode, per_sample_weights=factors,
            padding_idx=padding_idx,
        )  # fmt: skip

        def uses(grad: Tensor) -> Uses:
            rows = grad.unsqueeze(1).expand(-1, x_bl.shape[1], -1)
            counted = x_bl != padding_idx if padding_idx is not None else None
            if factors is not None:
                rows = rows * factors.detach().unsqueeze(-1)
            if mode == "mean":
                lengths = x_bl.shape[1] if counted is None else counted.sum(1).clamp(min=1)
                rows = rows / (lengths if counted is None else lengths.view(-1, 1, 1))
            index = x_bl if counted is None else x_bl.masked_fill(~counted, -1)
            index = index.reshape(n, -1)
            yield weight, Lookup(index, rows.reshape(*index.shape, -1), len(weight))

        y = rec.tap("embedding_bag", y, [weight], uses, [x])
        return rec.of_records(y.unflatten(0, (n, -1)))


def bag_of_largest(input: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
    """The largest entries of the rows of each bag; zeros for a bag of padding."""
    rows = F.embedding(input, weight, padding_idx)
    if padding_idx is None:
        return rows.amax(1)
    padding = (input == padding_idx).unsqueeze(-1)
    largest = rows.masked_fill(padding, -torch.inf).amax(1)
    return largest.masked_fill(padding.all(1), 0)
