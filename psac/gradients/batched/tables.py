"""Rows of tables that are looked up by number, and parameters that are written into rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.batched.owners import Owners
from psac.gradients.contributions.lookup import Lookup

if TYPE_CHECKING:
    from psac.gradients.batched.recorder import RowRecorder
    from psac.gradients.vectorized.recorder import Uses


def embedding(
    rec: RowRecorder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if scale_grad_by_freq:
        return NotImplemented
    y, numbers = torch.embedding(weight.detach(), indices), indices.detach()

    def uses(owners: Owners, grad: Tensor) -> Uses:
        places = numbers.masked_fill(numbers == padding_idx, -1) if padding_idx >= 0 else numbers
        places = owners.rows(places.reshape(-1) + 1) - 1  # rows that are not there: -1
        yield weight, Lookup(places, owners.rows(grad), len(weight))

    return rec.tap("embedding", y, indices.dim(), [weight], uses, [numbers])


def getitem(rec: RowRecorder, input: Tensor, index: Any) -> Any:
    """Rows of a table by their numbers."""
    if not isinstance(index, Tensor) or index.dtype is not torch.long or not rec.is_shared(input):
        return NotImplemented
    with rec:
        table = input.reshape(len(input), -1)
        rows = F.embedding(index % len(input), table)
        return rows.reshape(*index.shape, *input.shape[1:])


def index_select(rec: RowRecorder, input: Tensor, dim: int, index: Tensor) -> Any:
    return getitem(rec, input, index) if dim == 0 else NotImplemented


def setitem(rec: RowRecorder, input: Tensor, index: Any, value: Any) -> Any:
    if not rec.is_shared(value):
        return NotImplemented
    with torch.no_grad():
        shape = input[index].shape
    input[index] = rec.expanded(value, shape, "setitem")
    return None


def embedding_bag(
    rec: RowRecorder,
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
    """Rows are looked up, and summed by bag."""
    if scale_grad_by_freq or max_norm is not None or mode == "max":
        return NotImplemented
    with rec:
        count, places = len(input), torch.arange(input.numel(), device=input.device)
        if offsets is None:
            bags = places // input.shape[1]
        else:
            count = len(offsets) - include_last_offset
            bags = torch.bucketize(places, offsets[:count], right=True) - 1
        rows = F.embedding(input.flatten(), weight, padding_idx)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.reshape(-1, 1)
        counted = (input.flatten() != (-1 if padding_idx is None else padding_idx)).to(rows)
        rows = rows * counted.unsqueeze(1)
        total = rows.new_zeros(count, rows.shape[1]).index_add(0, bags, rows)
        if mode == "sum":
            return total
        sizes = counted.new_zeros(count).index_add(0, bags, counted).clamp(min=1)
        return total / sizes.unsqueeze(1)
