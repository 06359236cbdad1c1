"""Embedding tables: the gradient of a table has as many rows as the record has distinct tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from psac.gradients.contributions.lookup import Lookup
from psac.gradients.errors import NotVectorized
from psac.gradients.rules.physical import are_records, detached, physically, shaped

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder, Uses


def embedding(
    rec: Recorder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Also of indices that are the same for all records, such as positions."""
    of_copies = scale_grad_by_freq or rec.only_copies or any(are_records(weight))
    if of_copies or not rec.serves(weight, indices):
        return without_padding(rec, weight, indices, padding_idx, scale_grad_by_freq)
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


def without_padding(
    mode: TorchFunctionMode,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """The rows at `padding_idx` are cut off here.

    Where each record has a table, torch's batching rule heeds the padding of the first one alone.
    """
    if padding_idx < 0:
        return NotImplemented
    with mode:
        rows = torch.embedding(weight, indices, -1, scale_grad_by_freq)
        return torch.where((indices == padding_idx).unsqueeze(-1), rows.detach(), rows)


def getitem(rec: Recorder, input: Tensor, index: Any) -> Any:
    """Rows of a table by `table[index]`."""
    if not isinstance(index, Tensor):
        return NotImplemented
    return rows_of_table(rec, input, index)


def index_select(rec: Recorder, input: Tensor, dim: int, index: Tensor) -> Any:
    if not index.dim() and input.dim() and any(are_records(input, index)):
        with rec:  # torch's batching rule repeats the row
            return input.index_select(dim, index.unsqueeze(0))
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
    others = [t for t in (offsets, per_sample_weights) if t is not None]
    others = [rec.for_each(tensor, "embedding_bag") for tensor in others]
    with physically():
        n, index = rec.num_samples, rec.physical(input)
        index_np = index.flatten(1)
        values = [rec.physical(tensor).flatten(1) for tensor in others]
        starts_nb = values.pop(0) if offsets is not None else None
        given: dict[str, Any]
        factors_np, padding = values, None if padding_idx is None else padding_idx % len(weight)
        if starts_nb is None:  # all bags of one length
            bags, bag_np, given = index.flatten(0, 1), None, {}
        else:
            refuse_other_starts(starts_nb, index_np.shape[1])
            bags, places = index_np.flatten(), torch.arange(index_np.shape[1], device=index.device)
            bag_np = (places.unsqueeze(1) >= starts_nb.unsqueeze(1)).sum(2) - 1
            step = index_np.shape[1] * torch.arange(n, device=index.device)
            given = {"offsets": (starts_nb + step.unsqueeze(1)).flatten()}
        if factors_np:
            given["per_sample_weights"] = factors_np[0].reshape(bags.shape)
        (table,) = detached(weight)
        y = F.embedding_bag(bags, table, mode=mode, padding_idx=padding_idx, **given)
        y = shaped(y, (n, len(y) // max(n, 1), y.shape[-1]))

        def uses(grad_nbr: Tensor) -> Uses:
            if bag_np is None:
                rows = grad_nbr.repeat_interleave(bags.shape[1], 1)
            else:
                rows = grad_nbr.gather(1, bag_np.unsqueeze(-1).expand(-1, -1, grad_nbr.shape[-1]))
            chosen = index_np
            if padding is not None:
                chosen = index_np.masked_fill(index_np == padding, -1)
            if mode == "mean" and bag_np is None and padding is None:
                rows = rows / bags.shape[1]
            elif mode == "mean":
                rows = rows / lengths(chosen, bag_np, y).unsqueeze(-1)
            for factor in factors_np:
                rows = rows * factor.detach().unsqueeze(-1)
            yield weight, Lookup(chosen, rows, len(weight))

        saved = [index_np, *([] if starts_nb is None else [starts_nb]), *factors_np]
        return rec.of_records(rec.tap("embedding_bag", y, [weight], uses, saved))


def refuse_other_starts(starts_nb: Tensor, length: int) -> None:
    """Raises for bags that would begin or end among the indices of another record."""
    is_inside = (starts_nb[:, 0] == 0).all() & (starts_nb <= length).all()
    if not bool(is_inside & (starts_nb.diff(dim=1) >= 0).all()):
        raise NotVectorized("offsets of an embedding bag do not lie among the record's indices")


def lengths(index_np: Tensor, bag_np: Tensor | None, bags_nbr: Tensor) -> Tensor:
    """[n, p]: how many entries the bag of each has, those at -1 left out."""
    counted = (index_np >= 0).to(bags_nbr.dtype)
    if bag_np is None:
        each = index_np.shape[1] // bags_nbr.shape[1]
        found = counted.unflatten(1, (-1, each)).sum(2).repeat_interleave(each, 1)
    else:
        found = (
            torch.zeros_like(bags_nbr[..., 0]).scatter_add_(1, bag_np, counted).gather(1, bag_np)
        )
    return found.clamp(min=1)


def largest(input: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
    """The largest entries of the rows of each bag; zeros for a bag of padding."""
    rows = F.embedding(input, weight, padding_idx)
    if padding_idx is None:
        return rows.amax(1)
    padding = (input == padding_idx % len(weight)).unsqueeze(-1)
    found = rows.masked_fill(padding, -torch.inf).amax(1)
    return found.masked_fill(padding.all(1), 0)
