"""Sums over workers, in buckets: many small tensors travel together.

Guarantee: every worker gets the same bits, those of a sum in one order that the backend chooses.
The bytes that travel are those of the tensors, once: as many as ordinary data parallel training
sends for gradients of the same dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 25 * 2**20  # bytes, as in torch's DistributedDataParallel


@torch.no_grad()
def add_up(tensors: Iterable[Tensor], group_of: Callable[[torch.device], Any]) -> None:
    """Each becomes its sum over the workers of its device's group, in place.

    All buckets are on their way before the first one is waited for.
    """
    waiting = []
    for bucket in buckets([real(tensor) for tensor in tensors]):
        flat = flattened(bucket)
        work = dist.all_reduce(flat, group=group_of(flat.device), async_op=True)
        waiting.append((work, flat, bucket))
    for work, flat, bucket in waiting:
        work.wait()
        unflatten(flat, bucket)


def buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one dtype and device, in order, of about BUCKET bytes together."""
    by_kind: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        bucket = by_kind.setdefault((tensor.dtype, tensor.device), [])
        bucket.append(tensor)
        if sum(t.nbytes for t in bucket) >= BUCKET:
            yield by_kind.pop((tensor.dtype, tensor.device))
    yield from by_kind.values()


def flattened(bucket: list[Tensor]) -> Tensor:
    """End to end; a single tensor that lies so is not copied."""
    if len(bucket) == 1 and bucket[0].is_contiguous():
        return bucket[0].view(-1)
    return torch.cat([tensor.reshape(-1) for tensor in bucket])


def unflatten(flat: Tensor, bucket: list[Tensor]) -> None:
    for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
        if tensor.data_ptr() != part.data_ptr():
            tensor.copy_(part.view(tensor.shape))


def real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones."""
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
