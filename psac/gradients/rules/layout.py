"""Layouts in memory (channels_last), of which vmap knows nothing: its tensors have one axis more.

They are asked for and made with the records folded into the batch axis.  Strides are those of a
record by itself: where the axis of records is not the first in memory, torch's would tell how many
there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]

from psac.gradients.errors import NotVectorized
from psac.gradients.rules.physical import are_records, physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder

OF_CHANNELS = (torch.channels_last, torch.channels_last_3d)


def laid_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a function of a tensor that takes a `memory_format`."""

    def rule(rec: Recorder, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("memory_format") not in OF_CHANNELS:
            return NotImplemented
        if are_records(tensor) == [False] or not rec.serves(tensor):
            return NotImplemented
        with physically():
            result = function(rec.physical(tensor).flatten(0, 1), *args, **kwargs)
            if not isinstance(result, Tensor):
                return result
            return rec.of_records(result.unflatten(0, (rec.num_samples, -1)))

    return rule


def stride(rec: Recorder, tensor: Tensor, dim: int | None = None) -> Any:
    if are_records(tensor) == [False]:
        return NotImplemented
    strides = strides_of(rec, tensor)
    return strides if dim is None else strides[dim]


def strides_of(rec: Recorder, tensor: Tensor) -> tuple[int, ...]:
    """Steps over all records count one of them."""
    if not rec.serves(tensor):
        raise NotVectorized("strides are asked for within a transform, or of complex numbers")
    axis, value = _functorch.maybe_get_bdim(tensor), _functorch.get_unwrapped(tensor)
    step, n = value.stride(axis), rec.num_samples
    given = [size for k, size in enumerate(value.stride()) if k != axis]
    if any(size > step > 0 and size % n for size in given):
        raise NotVectorized("strides are asked for of a tensor that lies among those of others")
    return tuple(size // n if size > step > 0 else size for size in given)


def storage_offset(rec: Recorder, tensor: Tensor) -> Any:
    """The same for where a tensor begins."""
    if are_records(tensor) == [False]:
        return NotImplemented
    if not rec.serves(tensor):
        raise NotVectorized("a place in memory is asked for within a transform")
    axis, value = _functorch.maybe_get_bdim(tensor), _functorch.get_unwrapped(tensor)
    step = value.stride(axis)
    outer, inner = divmod(value.storage_offset(), rec.num_samples * step) if step else (0, 0)
    if inner >= step > 0:
        raise NotVectorized("a tensor that does not begin at the first record")
    return outer * step + inner if step else value.storage_offset()


def is_contiguous(rec: Recorder, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs or are_records(tensor) == [False] or not rec.serves(tensor):
        return is_laid_out(rec, tensor, *args, **kwargs)
    dense = 1
    for size, step in zip(reversed(tensor.shape), reversed(strides_of(rec, tensor)), strict=True):
        if size != 1 and step != dense:
            return False
        dense *= size
    return True


contiguous, is_laid_out = laid_out(Tensor.contiguous), laid_out(Tensor.is_contiguous)
to, clone = laid_out(Tensor.to), laid_out(torch.clone)
empty_like, zeros_like = laid_out(torch.empty_like), laid_out(torch.zeros_like)
