"""Has anybody written to these tensors?  A number for the content of each.

`Prints` are those of a whole model.  `.data` and numpy write without telling torch: large tensors
are then read in part, a part of its own at each turn, and small ones as a whole.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from psac.gradients.kernels.loops import loops

LARGE = 2**18  # bytes
SLICES = 16
TURNS_PER_READING = 32  # on average, until everything is read


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
    """The content of tensors at one time, to compare with a later one.

    A write that torch knows of is seen at once, and so is one to a tensor of up to 256 kB.
    Otherwise (`.data`, numpy) it is seen if it lies in the slice of this `turn`, one of 16.  Turns
    that count up from a secret number take all slices, so that whatever is written to at every turn
    is seen by the sixteenth.  Everything is read at secret turns, one in 32, and with `reads_all`.

    A tensor that was written to and has its content again counts as the same.
    """

    def __init__(
        self, tensors: Sequence[Tensor], turn: int = 0, *, reads_all: bool = False
    ) -> None:
        self._tensors, self._turn = list(tensors), turn
        self._reads_all = reads_all or is_secret_turn()
        self._large = {k: mark(t) for k, t in enumerate(tensors) if is_cut(t)}
        self._parts = checksums(self._windows(tensors))
        sums = checksums([tensors[k] for k in self._large])
        self._whole = dict(zip(self._large, sums, strict=True))

    def changed(self, tensors: Sequence[Tensor]) -> set[int]:
        """The numbers of those that are not what they were."""
        if len(tensors) != len(self._tensors):
            return set(range(max(len(tensors), len(self._tensors))))
        parts = checksums(self._windows(tensors))
        found = {k for k, (a, b) in enumerate(zip(parts, self._parts, strict=True)) if a != b}
        for k, before in self._large.items():
            if self._reads_all or tensors[k] is not self._tensors[k] or mark(tensors[k]) != before:
                found.add(k)
        again = [k for k in found if k in self._whole]
        sums = checksums([tensors[k] for k in again])
        return found - {k for k, now in zip(again, sums, strict=True) if now == self._whole[k]}

    def _windows(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        windows = list(tensors)
        for k in self._large:
            windows[k] = window(tensors[k], self._turn)
        return windows


def mark(tensor: Tensor) -> tuple[int, int]:
    """Another one if torch knows of a write, or if the memory is another."""
    return tensor._version, tensor.data_ptr()


class Marks:
    """As `Prints`, for many tensors that are written to by their owner alone.

    At each turn torch's counter of each is compared, and the content of a sixteenth of them.
    """

    def __init__(self, tensors: list[Tensor], turn: int, *, reads_all: bool = False) -> None:
        self._tensors, self._versions = tensors, [t._version for t in tensors]
        everything = reads_all or is_secret_turn()
        self._read = slice(None) if everything else slice(turn % SLICES, None, SLICES)
        self._sums = checksums(tensors[self._read])

    def changed(self, tensors: list[Tensor]) -> set[int]:
        """The numbers of those that are not what they were."""
        if len(tensors) != len(self._tensors):
            return set(range(max(len(tensors), len(self._tensors))))
        found = set()
        versions = [t._version for t in tensors]
        if versions != self._versions or not all(map(operator.is_, tensors, self._tensors)):
            now = zip(tensors, versions, strict=True)
            before = zip(self._tensors, self._versions, strict=True)
            pairs = enumerate(zip(now, before, strict=True))
            found = {k for k, ((t, v), (was, w)) in pairs if t is not was or v != w}
        sums = zip(checksums(tensors[self._read]), self._sums, strict=True)
        places = range(len(tensors))[self._read]
        return found | {places[k] for k, (now, was) in enumerate(sums) if now != was}


def is_secret_turn() -> bool:
    return secrets.randbelow(TURNS_PER_READING) == 0


def is_cut(tensor: Tensor) -> bool:
    return tensor.nbytes > LARGE and is_plain(tensor)


def window(tensor: Tensor, turn: int) -> Tensor:
    """A sixteenth of a large tensor, another one at each of 16 turns; all of a small one."""
    if not is_cut(tensor):
        return tensor
    number, size = turn % SLICES, tensor.numel()
    start, end = number * size // SLICES, (number + 1) * size // SLICES
    return tensor.detach().view(-1)[start:end]
