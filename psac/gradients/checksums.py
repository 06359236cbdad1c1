"""Has anybody written to these tensors?  A number for the content of each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .loops import loops


def checksums(tensors: Iterable[Tensor]) -> list[int]:
    """A number for the content of each tensor: whoever changes or reorders it changes the number.

    Against mistakes, not against those who look for a collision.
    """
    tensors = [tensor.detach() for tensor in tensors]
    compiled = loops()
    plain = [t for t in tensors if compiled and t.is_cpu and is_plain(t)]
    sums = dict(zip(map(id, plain), compiled.checksums(plain) if compiled else (), strict=True))
    return [sums[id(t)] if id(t) in sums else checksum(t) for t in tensors]


def is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_contiguous() and not tensor.is_quantized


def checksum(tensor: Tensor) -> int:
    """The same purpose in torch operations, where the compiled loop does not serve."""
    try:
        flat = tensor.detach().contiguous().reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        words = flat.view(torch.uint8)
        if len(words) % 8 == 0:
            words = words.view(torch.int64)
        places = torch.arange(1, 2 * len(words), 2, device=words.device)
        return int((words * places).sum())
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantised, meta
        return tensor._version
