"""How much memory what is formed on the way may take."""

from __future__ import annotations

import threading

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
