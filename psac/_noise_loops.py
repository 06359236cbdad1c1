"""The inner loop of `psac.noise`, twice: as torch operations, and compiled from C.

The compiled one is used where the user's machine has a C compiler and its results agree with the
first.
"""

import ctypes
import functools
import math
import pathlib
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from psac import _compiling

CHUNK = 2**17  # Numbers drawn at a time: a megabyte of keystream, to stay in the cache.
SOURCE = pathlib.Path(__file__).with_suffix(".c")


class Piece(NamedTuple):
    """Some entries of one tensor, and the words of keystream that make their noise.

    The words are as many as the entries or a few more: the first half radii, then angles.
    """

    tensor: int
    entries: slice
    words: slice


class Law(NamedTuple):
    """What is public about a release."""

    std: float
    grid: float
    scale: float


class Loops(Protocol):
    """out = scale * (round(sums, clamped to 2^50 grid) + round(noise)), for the entries of a piece.

    `round` goes to the grid; sums and out are contiguous, both of float32 or both of float64.
    """

    threaded: bool  # Whether a call uses several threads by itself.

    def add_noise(
        self, words: Tensor, sums: Tensor, out: Tensor, piece: Piece, law: Law
    ) -> None: ...


class TorchLoops:
    """The definition, and what runs where there is no compiler."""

    threaded = True

    def __init__(self) -> None:
        self._scratch = torch.empty(2, CHUNK, dtype=torch.float64)  # Allocating is slow.

    def add_noise(self, words: Tensor, sums: Tensor, out: Tensor, piece: Piece, law: Law) -> None:
        addends, sinks = (tensor.view(-1)[piece.entries] for tensor in (sums, out))
        noise = self.gaussians(words[piece.words], law.std)[: len(addends)]
        # Beside the anchor, float64 has no finer digits than the grid: this rounds both.
        anchor, limit = 1.5 * 2.0**52 * law.grid, 2.0**50 * law.grid
        total = self._scratch[0, : len(addends)].copy_(addends).clamp_(-limit, limit)
        total.sub_(anchor).add_(noise.add_(anchor))
        sinks.copy_(total if law.scale == 1 else total.mul_(law.scale))

    def gaussians(self, words: Tensor, std: float) -> Tensor:
        """Box-Muller: one radius and one angle give two numbers."""
        numbers, noise = self._scratch[:, : len(words)]
        radius, angle = numbers.copy_(words).chunk(2)
        least = torch.tensor(2.0**-64, dtype=torch.float64)
        torch.add(least, radius.abs_(), alpha=2.0**-63, out=radius)  # Uniform in (0, 1].
        radius.log_().mul_(-2 * std * std).sqrt_()
        angle.mul_(math.pi * 2.0**-63)
        torch.cos(angle, out=noise[: len(angle)]).mul_(radius)
        torch.sin(angle, out=noise[len(angle) :]).mul_(radius)
        return noise


class CompiledLoops:
    """`TorchLoops` in C, several times faster; calls release the interpreter's lock."""

    threaded = False

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        self._functions = {
            torch.float32: library.psac_add_noise_float,
            torch.float64: library.psac_add_noise_double,
        }
        for function in self._functions.values():
            function.argtypes = [pointer, size, pointer, pointer, size, real, real, real]
            function.restype = None

    def add_noise(self, words: Tensor, sums: Tensor, out: Tensor, piece: Piece, law: Law) -> None:
        offset = piece.entries.start * sums.element_size()
        self._functions[sums.dtype](
            words.data_ptr() + piece.words.start * 8,
            (piece.words.stop - piece.words.start) // 2,
            sums.data_ptr() + offset,
            out.data_ptr() + offset,
            piece.entries.stop - piece.entries.start,
            *law,
        )


@functools.cache
def compiled() -> CompiledLoops | None:
    """The compiled loop, or None where it cannot be had."""
    library = _compiling.library(SOURCE)
    if library is None:
        return None
    loops = CompiledLoops(library)
    return loops if _agree(loops, TorchLoops()) else None


def _agree(loops: Loops, definition: Loops) -> bool:
    """Guards against compilers that reorder arithmetic unasked, which would undo the rounding."""
    words = torch.arange(8192) * -0x61C8864680B583EB  # Wraps: spread over all 64 bits.
    sums = torch.linspace(-9.0, 9.0, len(words) - 3, dtype=torch.float64)
    piece = Piece(0, slice(0, len(sums)), slice(0, len(words)))
    # One coarse grid, where rounding is all that is seen, and one so fine that it is not.
    for grid, tolerance in ((2.0**-10, 0.0), (2.0**-45, 1e-13)):
        first, second = torch.empty_like(sums), torch.empty_like(sums)
        loops.add_noise(words, sums, first, piece, Law(3.0, grid, 0.5))
        definition.add_noise(words, sums, second, piece, Law(3.0, grid, 0.5))
        if not torch.allclose(first, second, rtol=0, atol=tolerance):
            return False
    return True
