"""How much memory what is formed on the way may take."""

from __future__ import annotations

import functools
import sys
import threading
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

# How many bytes a temporary may take; per-sample gradients and Gram matrices are formed in slices
# below it.
TEMPORARY_BYTES = 8 * 2**20
# A buffer that stays in the cache while patches are copied and multiplied.
SCRATCH_BYTES = 2**20


def slices(total: int, bytes_each: int, limit: int = TEMPORARY_BYTES) -> list[slice]:
    """Cuts `total` samples so that a temporary of `bytes_each` per sample stays below the limit."""
    step = max(1, min(total, limit // max(1, bytes_each)))
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]


_buffers = threading.local()


def scratch(like: Tensor) -> Tensor:
    """A tensor of the same shape for a result that is used at once.

    The next call may give the same memory again.
    """
    size = like.numel()
    buffer = getattr(_buffers, "flat", None)
    if (
        buffer is None
        or buffer.dtype != like.dtype
        or buffer.device != like.device
        or buffer.numel() < size
    ):
        buffer = _buffers.flat = torch.empty(size, dtype=like.dtype, device=like.device)
    return buffer[:size].view(like.shape)


class References(NamedTuple):
    """How many there are to an object, to the tensor behind it, and to its memory."""

    to_object: int
    to_tensor: int
    to_memory: int


def references(tensor: Tensor) -> References | None:
    """Pass an attribute, not a variable, which would be one more. None: they cannot be counted."""
    try:
        to_memory = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
        to_tensor: int = tensor._use_count()  # type: ignore[attr-defined]
        return References(sys.getrefcount(tensor), to_tensor, to_memory)
    except (AttributeError, RuntimeError):  # another version of torch; a tensor without memory
        return None


@functools.cache
def references_of_attributes(count: int) -> References | None:
    """Of a tensor that so many attributes hold, and nobody else: its memory may be written to."""
    holder = SimpleNamespace(tensor=torch.empty(1))
    one = references(holder.tensor)  # versions of Python count differently
    return None if one is None else one._replace(to_object=one.to_object + count - 1)
