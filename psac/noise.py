"""Gaussian noise on a sum of bounded contributions: cryptographic, rounded to a grid, fast.

`add_noise_` takes a sum s, a public standard deviation and a public scale, and releases

    y = scale * (round(s) + round(std * z)),

where z is standard normal and `round` goes to the nearest multiple of g = `grid(std)`.  Guarantees:

- Nothing leaks through low bits.  The noise is an integer number of steps g, drawn without looking
  at s, and so is what is then scaled and cast, for every s: it is the Gaussian mechanism on
  round(s), rounded.  That s is rounded first can raise its sensitivity by g sqrt(d) for d entries:
  at most 2^-28 sqrt(d) std, which is 1e-5 std for ten million.  Plain float32 addition shows s in
  the spacing of its results (Mironov 2012, doi:10.1145/2382196.2382264; arXiv:2112.05307).
- The law.  z is Box-Muller in float64 from 64 bits per radius and 64 per angle: |z| reaches 9.4,
  which a normal variable passes once in 10^20 draws; values near 0 lie closer together than g; the
  functions err by a few 2^-52, which moves the mass of a grid cell by a millionth part or so.
- The bits come from `generator`: see `psac.randomness`.  Threads and a compiler (`_noise_loops`)
  change the speed only: the same seed gives the same noise, but for one step g in one number out
  of a million where another library computed log, sin and cos.

Left to others: the sensitivity and std, calling this once per logical step, side channels such as
time.  NaN stays NaN (the engine drops such samples); an entry beyond 2^22 std, with std rounded
down to a power of two, is clamped to that, which never raises the sensitivity.

>>> total = torch.zeros(3)
>>> add_noise_([total], std=1.0, generator=SecureGenerator())
>>> torch.equal(total, torch.round(total / grid(1.0)) * grid(1.0))
True
"""

import collections
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from psac import _noise_loops
from psac._noise_loops import CHUNK, Law, Piece
from psac._torch_threads import on_all
from psac.randomness import (
    PADDING,
    InsecureNoiseWarning,
    NoiseGenerator,
    SecureGenerator,
    SeededGenerator,
    write_keystream,
)

__all__ = [
    "InsecureNoiseWarning",
    "NoiseGenerator",
    "SecureGenerator",
    "SeededGenerator",
    "add_noise_",
    "grid",
]

GRID_BITS = 28
ALIGNMENT = 16  # Words for a piece come in this multiple, so that processors fill their vectors.
SMALLEST_STD, LARGEST_STD = 1e-30, 1e30


def grid(std: float) -> float:
    """The step g of what is released: 2^-28 std, with std rounded down to a power of two."""
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - GRID_BITS)


def add_noise_(
    tensors: Iterable[Tensor],
    *,
    std: float,
    generator: NoiseGenerator,
    scale: float = 1.0,
    out: Iterable[Tensor] | None = None,
) -> None:
    """Adds N(0, std^2) to every entry, in place or into `out`, and multiplies by `scale`.

    `std` and `scale` must be public: `scale` is meant for 1 / expected_batch_size.  std = 0 means
    exactly no noise, and no rounding.  Any floating dtype, device and strides; the numbers are
    drawn on the CPU.  Each entry of each tensor has noise of its own: pass a tied tensor once.
    """
    sources = list(tensors)
    targets = sources if out is None else list(out)
    _check(sources, targets, std, scale, generator)
    if std == 0:
        for source, target in zip(sources, targets, strict=True):
            target.detach().copy_(source.detach() * scale)
        return
    sums = [_plain(source) for source in sources]
    sinks = [
        target.detach() if _is_plain(target, total.dtype) else torch.empty_like(total)
        for target, total in zip(targets, sums, strict=True)
    ]
    _add_in_chunks(sums, sinks, float(std), float(scale), generator)
    for target, sink in zip(targets, sinks, strict=True):
        if not _is_plain(target, sink.dtype):
            target.detach().copy_(sink)


def _check(
    sources: list[Tensor],
    targets: list[Tensor],
    std: float,
    scale: float,
    generator: NoiseGenerator,
) -> None:
    if not (std == 0 or SMALLEST_STD <= std <= LARGEST_STD):
        raise ValueError(
            f"std is {std}: allowed are 0 (no noise) and [{SMALLEST_STD}, {LARGEST_STD}]."
        )
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}: it must be finite, such as 1 / expected_batch_size.")
    if not isinstance(generator, NoiseGenerator):
        raise TypeError(
            f"generator is {generator!r}: pass SecureGenerator() or SeededGenerator(0)."
        )
    if [tensor.shape for tensor in sources] != [tensor.shape for tensor in targets]:
        raise ValueError("`out` must have one tensor of the same shape for each of `tensors`.")
    for tensor in (*sources, *targets):
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            raise TypeError(
                f"cannot add noise to a {tensor.layout} tensor of {tensor.dtype}: pass dense "
                "floating-point sums (a sparse one by .to_dense(): its zeros need noise too)."
            )


def _plain(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, contiguous, as float64 or float32: not copied if it is so."""
    dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    return tensor.detach().to("cpu", dtype).contiguous()


def _is_plain(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype is dtype and tensor.is_contiguous()


def _loops() -> _noise_loops.Loops:
    return _noise_loops.compiled() or _noise_loops.TorchLoops()


def _add_in_chunks(
    sums: list[Tensor], sinks: list[Tensor], std: float, scale: float, generator: NoiseGenerator
) -> None:
    """Keystream, noise and addition, one chunk at a time while its numbers are in the cache."""
    loops, law = _loops(), Law(std, grid(std), scale)
    chunks = _chunks([total.numel() for total in sums])
    key, first_nonce = generator.reserve(len(chunks))
    todo = collections.deque(enumerate(chunks, first_nonce))  # Threads may take from it at once.

    def work() -> None:
        stream = bytearray(8 * CHUNK + PADDING)
        words = torch.frombuffer(stream, dtype=torch.int64, count=CHUNK)
        while todo:
            try:
                nonce, pieces = todo.popleft()
            except IndexError:  # Another thread took the last one.
                return
            write_keystream(key, nonce, _ZEROS[: 8 * pieces[-1].words.stop], stream)
            for piece in pieces:
                loops.add_noise(words, sums[piece.tensor], sinks[piece.tensor], piece, law)

    # Waking a thread for a single chunk does not pay.
    on_all(work, 1 if loops.threaded else min(torch.get_num_threads(), len(chunks) // 2 + 1))


_ZEROS = memoryview(bytes(8 * CHUNK))


def _chunks(sizes: Sequence[int]) -> list[list[Piece]]:
    """The tensors end to end, aligned, and cut every CHUNK numbers."""
    chunks, used = [], CHUNK
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            if used == CHUNK:
                chunks.append([])
                used = 0
            stop = min(size, start + CHUNK - used)
            end = used + -(-(stop - start) // ALIGNMENT) * ALIGNMENT
            chunks[-1].append(Piece(tensor, slice(start, stop), slice(used, end)))
            start, used = stop, end
    return chunks
