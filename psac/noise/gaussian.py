"""Gaussian noise on a sum of bounded contributions: cryptographic, rounded to a grid, fast.

`add_noise_` takes a sum s, a public standard deviation and a public scale, and releases

    y = scale * (round(s) + round(std * z)),

where z is standard normal and `round` goes to the nearest multiple of g = `grid(std)`.  Guarantees:

- Nothing leaks through low bits.  The noise is an integer number of steps g, drawn independently of
  s, and so is the sum, which is then scaled and cast: the release is the Gaussian mechanism on
  round(s), rounded.  Rounding s can raise its sensitivity by g sqrt(d) for d entries: at most
  2^-28 sqrt(d) std, which is 1e-5 std for ten million.  Plain float32 addition reveals s in the
  spacing of its results (Mironov 2012, doi:10.1145/2382196.2382264; arXiv:2112.05307).
- The distribution.  z is Box-Muller in float64, from 63 bits and a sign per radius and 64 per
  angle: |z| reaches 9.4, which a normal variable exceeds once in 10^20 draws; values near 0 lie
  closer together than g.  Rounding errors are a few 2^-52, in the far tail 2^-47, so the bounds of
  a grid cell and its mass change by about a millionth.  The polynomials of `loops` have just the
  length for that: with shorter ones, loops and machines would no longer agree.
- The bits come from `generator`: see `psac.noise.generators`.  Each tensor, and each CHUNK of a
  large one, has its own AES stream.  Threads, a compiler and the processor's instructions (`loops`)
  change only the speed: the same seed gives the same noise, except for one step g in about one of
  a million numbers where another library computed log, sin and cos.

Left to others: sensitivity and std, calling this once per logical step, side channels such as time.
NaN stays NaN (the engine drops such samples).  An entry beyond 2^22 std, with std rounded down to a
power of two, is clamped to that, which never raises the sensitivity.

>>> from psac.noise.generators import SecureGenerator
>>> total = torch.zeros(3)
>>> add_noise_([total], std=1.0, generator=SecureGenerator())
>>> torch.equal(total, torch.round(total / grid(1.0)) * grid(1.0))
True
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from psac.noise import loops
from psac.noise.generators import NoiseGenerator, refuse_other_generators
from psac.noise.loops import CHUNK, Law, Piece, Streams

GRID_BITS = 28
SMALLEST_STD, LARGEST_STD = 1e-30, 1e30


def grid(std: float) -> float:
    """The step g of what is released: 2^-28 std, with std rounded down to a power of two."""
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - GRID_BITS)


@torch.no_grad()
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
    exactly no noise, and no rounding.  Any floating dtype, device and strides work; the noise is
    drawn on the CPU.  Each entry of each tensor gets independent noise: pass a tied tensor once.
    """
    sources = list(tensors)
    targets = sources if out is None else list(out)
    _check(sources, targets, std, scale, generator)
    if std == 0:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source * scale)
        return
    sums = [_plain(source, _wide(source.dtype)) for source in sources]
    sinks = sums
    if out is not None:
        sinks = [_plain(target, s.dtype) for target, s in zip(targets, sums, strict=True)]
    pieces = _pieces([total.numel() for total in sums])
    streams = _reserved(generator, len(pieces))
    _loops().add_noise(streams, pieces, sums, sinks, Law(float(std), grid(std), float(scale)))
    for target, sink in zip(targets, sinks, strict=True):
        if sink.data_ptr() != target.data_ptr():
            target.copy_(sink)


def _reserved(generator: NoiseGenerator, count: int) -> Streams:
    key, nonce = generator.reserve(count)
    if len(key) != 16 or not 0 <= nonce <= 2**63 - count:
        raise ValueError(
            f"{type(generator).__name__}.reserve gave a key of {len(key)} bytes and the nonce "
            f"{nonce}: it takes 16 bytes, and nonces below 2^63."
        )
    return Streams(key, nonce)


def _check(
    sources: list[Tensor],
    targets: list[Tensor],
    std: float,
    scale: float,
    generator: object,
) -> None:
    if not (std == 0 or SMALLEST_STD <= std <= LARGEST_STD):
        raise ValueError(
            f"std is {std}: allowed are 0 (no noise) and [{SMALLEST_STD}, {LARGEST_STD}]."
        )
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}: it must be finite, such as 1 / expected_batch_size.")
    refuse_other_generators(generator)
    if targets is not sources and [t.shape for t in sources] != [t.shape for t in targets]:
        raise ValueError("`out` must have one tensor of the same shape for each of `tensors`.")
    for tensor in sources if targets is sources else (*sources, *targets):
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            raise TypeError(
                f"cannot add noise to a {tensor.layout} tensor of {tensor.dtype}: pass dense "
                "floating-point sums (a sparse one by .to_dense(): its zeros need noise too)."
            )


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _plain(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor on the CPU, contiguous, of this dtype: not copied if it is so."""
    return tensor.to("cpu", dtype).contiguous()


def _loops() -> loops.Loops:
    return loops.compiled() or loops.TorchLoops()


def _pieces(sizes: Sequence[int]) -> list[Piece]:
    """Each tensor by itself, cut every CHUNK numbers."""
    return [
        Piece(tensor, start, min(start + CHUNK, size))
        for tensor, size in enumerate(sizes)
        for start in range(0, size, CHUNK)
    ]
