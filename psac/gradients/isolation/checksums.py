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

from psac.gradients.kernels.loops import loops

LARGE = 2**18  # bytes


def checksums(tensors: Iterable[Tensor]) -> list[int]:
    """A number for the content of each tensor: whoever changes or reorders it changes the number.

    Against mistakes, not against those who look for a collision.
    """
    tensors, compiled = list(tensors), loops()
    if compiled is None or not tensors:
        return [checksum(tensor) for tensor in tensors]
    plain = [tensor for tensor in tensors if tensor.is_cpu and is_plain(tensor)]
    sums = compiled.checksums(plain)
    if len(plain) == len(tensors):
        return sums
    known = dict(zip(map(id, plain), sums, strict=True))
    return [known[id(t)] if id(t) in known else checksum(t) for t in tensors]


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
        self._versions = [tensor._version for tensor in tensors]
        self._large = [k for k, t in enumerate(tensors) if t.nbytes > LARGE and is_plain(t)]
        sums = checksums([*tensors, *(window(tensors[k], self._place) for k in self._large)])
        self._whole, self._windows = sums[: len(tensors)], sums[: len(tensors)]
        for k, part in zip(self._large, sums[len(tensors) :], strict=True):
            self._windows[k] = part

    def changed(self, tensors: Sequence[Tensor]) -> set[int]:
        """The numbers of those that are not what they were."""
        if len(tensors) != len(self._whole):
            return set(range(max(len(tensors), len(self._whole))))
        windows = list(tensors)
        for k in self._large:
            windows[k] = window(tensors[k], self._place)
        now = zip(tensors, checksums(windows), self._versions, self._windows, strict=True)
        written = [k for k, (t, w, v, was) in enumerate(now) if t._version != v or w != was]
        whole = checksums([tensors[k] for k in written])
        return {k for k, sum_ in zip(written, whole, strict=True) if sum_ != self._whole[k]}


def window(tensor: Tensor, place: int) -> Tensor:
    """A sixteenth of a large tensor, all of a small one."""
    if tensor.nbytes <= LARGE or not is_plain(tensor):
        return tensor
    length = tensor.numel() // 16
    start = place % (tensor.numel() - length)
    return tensor.detach().view(-1)[start : start + length]
