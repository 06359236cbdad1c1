"""The two loops of `psac.noise` over many numbers: as torch operations, and compiled from C.

`gaussians` turns words of keystream into noise, `add` adds noise to sums on a grid.  The compiled
pair is used where the user's machine has a C compiler and the result agrees with the torch pair.
It is compiled once per process (a quarter of a second) in a temporary folder, so that no cached
binary goes stale, meets another processor, or is tampered with.
"""

import ctypes
import functools
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Protocol

import torch
from torch import Tensor

SOURCE = pathlib.Path(__file__).with_suffix(".c")
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
WIDE = "-mprefer-vector-width=512"  # Not known to every compiler: tried first.


class Loops(Protocol):
    """`add`: out = (round(sums clamped to +-limit) + round(noise)) scale, consuming the noise.

    To add and subtract the anchor, 1.5 * 2^52 grid steps, is to round to the grid: in float64 no
    finer digits remain.  The sum of the two rounded numbers is then exact.
    """

    threaded: bool  # Whether a call uses several threads by itself.

    def gaussians(self, words: Tensor, std: float) -> Tensor: ...

    def add(
        self, noise: Tensor, sums: Tensor, out: Tensor, anchor: float, limit: float, scale: float
    ) -> None: ...


class TorchLoops:
    """The definition, and what runs where there is no compiler."""

    threaded = True

    def gaussians(self, words: Tensor, std: float) -> Tensor:
        """Box-Muller: the first half of the words gives radii, the second angles."""
        radius, angle = words.double().chunk(2)
        least = torch.tensor(2.0**-64, dtype=torch.float64)
        torch.add(least, radius.abs_(), alpha=2.0**-63, out=radius)  # Uniform in (0, 1].
        radius.log_().mul_(-2 * std * std).sqrt_()
        angle.mul_(math.pi * 2.0**-63)
        noise = torch.empty(len(words), dtype=torch.float64)
        torch.cos(angle, out=noise[: len(angle)]).mul_(radius)
        torch.sin(angle, out=noise[len(angle) :]).mul_(radius)
        return noise

    def add(
        self, noise: Tensor, sums: Tensor, out: Tensor, anchor: float, limit: float, scale: float
    ) -> None:
        noise.add_(anchor).add_(sums.double().clamp(-limit, limit).sub_(anchor))
        out.copy_(noise if scale == 1 else noise.mul_(scale))


class CompiledLoops:
    """`TorchLoops` in C, several times faster; calls release the interpreter's lock."""

    threaded = False

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        self._gaussians = library.psac_gaussians
        self._gaussians.argtypes, self._gaussians.restype = [pointer, size, real], None
        self._add = {torch.float32: library.psac_add_float, torch.float64: library.psac_add_double}
        for function in self._add.values():
            function.argtypes = [pointer, pointer, pointer, size, real, real, real]
            function.restype = None

    def gaussians(self, words: Tensor, std: float) -> Tensor:
        self._gaussians(words.data_ptr(), len(words) // 2, std)
        return words.view(torch.float64)

    def add(
        self, noise: Tensor, sums: Tensor, out: Tensor, anchor: float, limit: float, scale: float
    ) -> None:
        addresses = noise.data_ptr(), sums.data_ptr(), out.data_ptr()
        self._add[sums.dtype](*addresses, len(sums), anchor, limit, scale)


@functools.cache
def compiled() -> CompiledLoops | None:
    """The compiled loops, or None where they cannot be had or PSAC_NO_COMPILE is set."""
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
    """Guards against compilers that reorder arithmetic by default, which would undo the rounding."""
    anchor, words = 1.5 * 2.0**52, torch.arange(-(2**63), 2**63, 2**51 + 12345)[:8190]
    noises = [each.gaussians(words.clone(), 1e6) for each in (loops, definition)]
    if not torch.allclose(*noises, rtol=1e-12, atol=1e-7):
        return False
    sums = torch.linspace(-1e3, 1e3, 8190, dtype=torch.float64)
    outs = torch.empty(2, 8190, dtype=torch.float64)
    for each, out in zip((loops, definition), outs, strict=True):
        each.add(noises[1].clone(), sums, out, anchor, 900.0, 0.5)
    return torch.equal(*outs)
