"""Embedding tables: the gradient of a table has as many rows as the record has distinct tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..lookup import Lookup
from .physical import are_records, detached, physically, shaped

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


def getitem(rec: Recorder, input: Tensor, index: Any) -> Any:
    """Rows of a table by `table[index]`."""
    if not isinstance(index, Tensor):
        return NotImplemented
    return rows_of_table(rec, input, index)


def index_select(rec: Recorder, input: Tensor, dim: int, index: Tensor) -> Any:
    return rows_of_table(rec, input, index) if dim == 0 else NotImplemented


def rows_of_table(rec: Recorder, table: Tensor, index: Tensor) -> Any:
    """Only of trained tables: for others torch is as good."""
    if are_records(table, index) != [False, True] or not table.requires_grad or not table.dim():
        return NotImplemented
    if index.dtype not in (torch.int64, torch.int32) or not rec.serves(table, index):
        return NotImplemented
    with rec:
        from_the_start = torch.where(index < 0, index + len(table), index)
        rows = table.reshape(len(table), math.prod(table.shape[1:]))
        return torch.embedding(rows, from_the_start).reshape(*index.shape, *table.shape[1:])


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
    """Bags of a fixed length, [bags, length], or of any, one after another from their `offsets`."""
    if are_records(input) != [True] or any(are_records(weight)) or include_last_offset:
        return NotImplemented
    if scale_grad_by_freq or max_norm is not None or (offsets is None) == (input.dim() == 1):
        return NotImplemented
    if mode == "max":
        with rec:
            return NotImplemented if offsets is not None else largest(input, weight, padding_idx)
    if not rec.serves(input, weight, offsets, per_sample_weights):
        return NotImplemented
    if offsets is None:
        offsets = torch.arange(0, input.numel(), input.shape[1], device=input.device)
    others = [offsets] if per_sample_weights is None else [offsets, per_sample_weights]
    others = [rec.for_each(tensor, "embedding_bag") for tensor in others]
    with physically():
        n, index_np = rec.num_samples, rec.physical(input).flatten(1)
        starts_nb, *factors = (rec.physical(tensor).flatten(1) for tensor in others)
        step = index_np.shape[1] * torch.arange(n, device=index_np.device)
        y = F.embedding_bag(
            index_np.flatten(), detached(weight)[0], (starts_nb + step.unsqueeze(1)).flatten(),
            mode=mode, per_sample_weights=factors[0].flatten() if factors else None,
            padding_idx=padding_idx,
        )  # fmt: skip

        def uses(grad_nbr: Tensor) -> Uses:
            places = torch.arange(index_np.shape[1], device=index_np.device)
            bag_np = (places.unsqueeze(1) >= starts_nb.unsqueeze(1)).sum(2) - 1
            rows = grad_nbr.gather(1, bag_np.unsqueeze(-1).expand(-1, -1, grad_nbr.shape[-1]))
            index = index_np
            if padding_idx is not None:
                padding = padding_idx % len(weight)
                index = index_np.masked_fill(index_np == padding, -1)
            if mode == "mean":
                counted = (index >= 0).to(grad_nbr.dtype)
                lengths = torch.zeros_like(grad_nbr[..., 0]).scatter_add_(1, bag_np, counted)
                rows = rows / lengths.clamp(min=1).gather(1, bag_np).unsqueeze(-1)
            for factor in factors:
                rows = rows * factor.detach().unsqueeze(-1)
            yield weight, Lookup(index, rows, len(weight))

        y = shaped(y, (*starts_nb.shape, y.shape[-1]))
        saved = [index_np, starts_nb, *factors]
        return rec.of_records(rec.tap("embedding_bag", y, [weight], uses, saved))


def largest(input: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
    """The largest entries of the rows of each bag; zeros for a bag of padding."""
    rows = F.embedding(input, weight, padding_idx)
    if padding_idx is None:
        return rows.amax(1)
    padding = (input == padding_idx % len(weight)).unsqueeze(-1)
    found = rows.masked_fill(padding, -torch.inf).amax(1)
    return found.masked_fill(padding.all(1), 0)
