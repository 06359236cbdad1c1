"""The inner loop of `psac.noise`, twice: as torch operations, and compiled from C.

The compiled one is used where the user's machine has a C compiler and its results agree with the
first.  It is compiled once per process (a quarter of a second) in a temporary folder, so that no
cached binary goes stale, meets another processor, or is tampered with.
"""

import ctypes
import functools
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

BLOCK = 512  # Words that are used together: half for radii, half for angles; as in the C file.
PART = 2**16  # Numbers for which the steps of `TorchLoops` stay in the processor's cache.
SOURCE = pathlib.Path(__file__).with_suffix(".c")
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
WIDE = "-mprefer-vector-width=512"  # Not known to every compiler: tried first.


class Piece(NamedTuple):
    """Some entries of one tensor, and the whole blocks of keystream that make their noise."""

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

    def add_noise(self, words: Tensor, sums: Tensor, out: Tensor, piece: Piece, law: Law) -> None:
        parts = (words[piece.words], *(each.view(-1)[piece.entries] for each in (sums, out)))
        for bits, addends, sinks in zip(*(part.split(PART) for part in parts), strict=True):
            noise = self.gaussians(bits, law.std)[: len(addends)]
            # Beside the anchor, float64 has no finer digits than the grid: this rounds both.
            anchor, limit = 1.5 * 2.0**52 * law.grid, 2.0**50 * law.grid
            noise.add_(anchor).add_(addends.double().clamp(-limit, limit).sub_(anchor))
            sinks.copy_(noise if law.scale == 1 else noise.mul_(law.scale))

    def gaussians(self, words: Tensor, std: float) -> Tensor:
        """Box-Muller."""
        blocks = words.view(-1, 2, BLOCK // 2)
        radius, angle = blocks[:, 0].double(), blocks[:, 1].double()
        least = torch.tensor(2.0**-64, dtype=torch.float64)
        torch.add(least, radius.abs_(), alpha=2.0**-63, out=radius)  # Uniform in (0, 1].
        radius.log_().mul_(-2 * std * std).sqrt_()
        angle.mul_(math.pi * 2.0**-63)
        noise = torch.empty(blocks.shape, dtype=torch.float64)
        torch.mul(angle.cos(), radius, out=noise[:, 0])
        torch.mul(angle.sin_(), radius, out=noise[:, 1])
        return noise.view(-1)


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
            function.argtypes = [pointer, pointer, pointer, size, real, real, real]
            function.restype = None

    def add_noise(self, words: Tensor, sums: Tensor, out: Tensor, piece: Piece, law: Law) -> None:
        start, length = piece.entries.start, piece.entries.stop - piece.entries.start
        self._functions[sums.dtype](
            words.data_ptr() + 8 * piece.words.start,
            sums.data_ptr() + sums.element_size() * start,
            out.data_ptr() + out.element_size() * start,
            length,
            *law,
        )


@functools.cache
def compiled() -> CompiledLoops | None:
    """The compiled loop, or None where it cannot be had or PSAC_NO_COMPILE is set."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or "PSAC_NO_COMPILE" in os.environ:
        return None
    with tempfile.TemporaryDirectory(prefix="psac-", ignore_cleanup_errors=True) as folder:
        library = str(pathlib.Path(folder, "noise_loops.so"))
        for flags in ([*FLAGS, WIDE], FLAGS):
            command = [compiler, *flags, str(SOURCE), "-o", library, "-lm"]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=60)
                loops = CompiledLoops(ctypes.CDLL(library))
            except (OSError, subprocess.SubprocessError, AttributeError):
                continue
            return loops if _agree(loops, TorchLoops()) else None
    return None


def _agree(loops: Loops, definition: Loops) -> bool:
    """Guards against compilers that reorder arithmetic unasked, which would undo the rounding."""
    words = torch.arange(16 * BLOCK) * -0x61C8864680B583EB  # Wraps: spread over all 64 bits.
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
