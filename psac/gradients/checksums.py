"""Has anybody written to these tensors?  A number for the content of each.

`Prints` are those of a whole model.  To compare, a large tensor that torch says nobody has written
to is read in part, at a secret place that changes from print to print; `.data` and numpy write
without telling torch.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from .loops import loops

LARGE = 2**18  # bytes


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


class Prints:
    """The content of tensors at one time."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._place = secrets.randbits(30)
        self._whole = checksums(tensors)
        self._versions = [tensor._version for tensor in tensors]
        self._windows = checksums([window(tensor, self._place) for tensor in tensors])

    def changed(self, tensors: Sequence[Tensor]) -> set[int]:
        """The numbers of those that are not what they were."""
        if len(tensors) != len(self._whole):
            return set(range(max(len(tensors), len(self._whole))))
        windows = checksums([window(tensor, self._place) for tensor in tensors])
        written = [
            k
            for k, tensor in enumerate(tensors)
            if tensor._version != self._versions[k] or windows[k] != self._windows[k]
        ]
        whole = checksums([tensors[k] for k in written])
        return {k for k, now in zip(written, whole, strict=True) if now != self._whole[k]}


def window(tensor: Tensor, place: int) -> Tensor:
    """A sixteenth of a large tensor, all of a small one."""
    if tensor.nbytes <= LARGE or not is_plain(tensor):
        return tensor
    length = tensor.numel() // 16
    start = place % (tensor.numel() - length)
    return tensor.detach().view(-1)[start : start + length]
