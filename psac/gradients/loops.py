"""Norms of per-sample gradients by loops compiled from C (loops.c), where there is a compiler.

    convolution  forms a sample's weight gradient in the cache, takes its norm, keeps or drops it
    pixels       the norm of a convolution's weight gradient, from inner products of pixels
    gram         the norm of a sum of outer products, from half of each symmetric Gram matrix
    layer_norm   sums over positions, of gradients and of their products with the inputs
    group_norm   the same, where positions stand last

All are for float32 on the CPU, and do what the rules do in torch operations otherwise: `loops()` is
None where they cannot be compiled or disagree with those.  Samples are spread over torch's threads.

Letters: n sample, h group, p position, l = input channel x kernel, o output channel.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import math
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from psac import _compiling
from psac._torch_threads import on_all

SOURCE = pathlib.Path(__file__).with_suffix(".c")
PIECES = 4  # for each thread, so that a slow one does not keep the others waiting
pointer, size = ctypes.c_void_p, ctypes.c_int64


class Geometry(NamedTuple):
    """A convolution over two dimensions; channels are those of one group."""

    channels: int
    height: int
    width: int
    out_channels: int
    out_height: int
    out_width: int
    groups: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def lines(self) -> int:
        return self.channels * math.prod(self.kernel)

    def shifts_line_up(self) -> bool:
        """Whether a kernel offset is a shift of whole output positions.

        If need be after taking strides apart.
        """
        return all(
            s == 1 or (k % s == 0 and d == 1)
            for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True)
        )

    def sizes(self) -> tuple[int, int]:
        """Height and width of the padded input that outputs see, in steps of the stride."""
        out = (self.out_height, self.out_width)
        reach = [
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(out, self.stride, self.kernel, self.dilation, strict=True)
        ]
        height, width = (-(-size // s) for size, s in zip(reach, self.stride, strict=True))
        return height, width

    def flat(self) -> list[int]:
        return [*self[:7], *self.kernel, *self.stride, *self.padding, *self.dilation]


class Loops:
    """The compiled functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._convolution, self._gram = library.psac_convolution, library.psac_gram
        self._pixels, self._pixels_scratch = library.psac_pixels, library.psac_pixels_scratch
        self._layer_norm, self._group_norm = library.psac_layer_norm, library.psac_group_norm
        part = [size] * 2  # of the samples: the first, and the one after the last
        self._convolution.argtypes = [pointer] * 7 + part
        self._pixels.argtypes = [pointer] * 7 + part
        self._pixels_scratch.argtypes, self._pixels_scratch.restype = [pointer], size
        self._gram.argtypes = [pointer] * 2 + [size] + [pointer] * 4 + [size, pointer] + part
        self._alive, self._gather = library.psac_alive, library.psac_gather
        self._alive.argtypes = [pointer, size, pointer, *part]
        self._gather.argtypes = [pointer, size] + [pointer] * 3 + part
        self._layer_norm.argtypes = [pointer] * 4 + [size, pointer, size] + part
        self._group_norm.argtypes = [pointer] * 4 + [size] * 3 + [pointer, size] + part
        for function in (
            self._convolution, self._pixels, self._gram, self._alive, self._gather,
            self._layer_norm, self._group_norm,
        ):  # fmt: skip
            function.restype = None
        self._gram_numbers = library.psac_gram_numbers
        self._gram_numbers.argtypes, self._gram_numbers.restype = [size], size
        library.psac_lanes.restype = size
        self.lanes = int(library.psac_lanes())

    def serves(self, *tensors: Tensor) -> bool:
        return all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors)

    def padded(self, out_channels: int) -> int:
        """How many output channels are kept: a multiple of the lanes, those beyond are zero."""
        return -(-out_channels // self.lanes) * self.lanes

    def convolution(
        self, inputs: Tensor, grad: Tensor, geometry: Geometry, kept: Tensor | None = None
    ) -> Tensor:
        """Squared norms [n] of weight gradients; `kept` [n, h, l, padded o] takes those."""
        inputs, grad = inputs.contiguous(), grad.contiguous()
        squares = torch.empty(len(inputs), dtype=torch.float64)
        numbers = (size * 15)(*geometry.flat())
        (ph, pw), positions = geometry.padding, geometry.out_height * geometry.out_width
        image = (geometry.height + 2 * ph) * (geometry.width + 2 * pw) * geometry.channels
        needed = positions * self.padded(geometry.out_channels) + image

        def work(take: Callable[[], tuple[int, int] | None]) -> None:
            offsets = (size * (geometry.lines + self.lanes))()
            scratch = torch.empty(needed, dtype=torch.float32)
            while (part := take()) is not None:
                self._convolution(
                    inputs.data_ptr(), grad.data_ptr(), None if kept is None else kept.data_ptr(),
                    squares.data_ptr(), numbers, offsets, scratch.data_ptr(), *part,
                )  # fmt: skip

        shared_out(work, len(inputs))
        return squares.to(inputs.dtype)

    def pixels(self, inputs: Tensor, grad: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        """Squared norms [n] of weight gradients of stride one, and their diagonal part."""
        inputs, grad = inputs.contiguous(), grad.contiguous()
        squares, mass = torch.empty(2, len(inputs), dtype=torch.float64)
        numbers = (size * 15)(*geometry.flat())
        needed = self._pixels_scratch(numbers)

        def work(take: Callable[[], tuple[int, int] | None]) -> None:
            shifts = (size * math.prod(geometry.kernel))()
            scratch = torch.empty(needed, dtype=torch.float32)
            while (part := take()) is not None:
                self._pixels(
                    inputs.data_ptr(), grad.data_ptr(), squares.data_ptr(), mass.data_ptr(),
                    numbers, shifts, scratch.data_ptr(), *part,
                )  # fmt: skip

        shared_out(work, len(inputs))
        return squares.to(inputs.dtype), mass.to(inputs.dtype)

    def gram(
        self,
        left_npl: Tensor,
        right_npr: Tensor,
        known: Tensor | None = None,
        filled: bool = False,
        sums_nr: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Squared norms [n] of sum over p of left[n, p] x right[n, p], and their diagonal part.

        `known`, of `gram_numbers` for each sample, takes the inner products of the left side, or
        has them already (`filled`). `sums_nr` takes the sums of the right side over positions.
        With `starts`, sides are [1, m, ...], and sample n has the rows starts[n] to starts[n + 1].
        """
        n, p, _ = left_npl.shape
        if starts is not None:
            n, p = len(starts) - 1, int(starts.diff().max())
        squares, mass = torch.empty(2, n, dtype=torch.float64)
        left_npl, right_npr = with_rows(left_npl), with_rows(right_npr)
        first, second = rows(left_npl), rows(right_npr)
        begins, tiles, sums = (
            None if t is None else t.data_ptr() for t in (starts, known, sums_nr)
        )

        def work(take: Callable[[], tuple[int, int] | None]) -> None:
            while (part := take()) is not None:
                self._gram(
                    first, second, p, begins, squares.data_ptr(), mass.data_ptr(), tiles, filled,
                    sums, *part,
                )  # fmt: skip

        shared_out(work, n)
        return squares.float(), mass.float()

    def gram_numbers(self, positions: int) -> int:
        """How many numbers the inner products of a sample's positions take."""
        return int(self._gram_numbers(positions))

    def alive(self, values_npk: Tensor) -> Tensor:
        """[n, p], one where a row is not all zero."""
        n, p, _ = values_npk.shape
        values_npk = with_rows(values_npk)
        first = rows(values_npk)
        found = torch.empty(n, p, dtype=torch.uint8)

        def work(take: Callable[[], tuple[int, int] | None]) -> None:
            while (part := take()) is not None:
                self._alive(first, p, found.data_ptr(), *part)

        shared_out(work, n)
        return found

    def gather(self, values_npk: Tensor, alive_np: Tensor, starts: Tensor) -> Tensor:
        """[m, k]: the rows that are alive, one sample after another, which begin at `starts`."""
        n, p, width = values_npk.shape
        values_npk = with_rows(values_npk)
        first = rows(values_npk)
        found = torch.empty(int(starts[-1]), width, dtype=torch.float32)

        def work(take: Callable[[], tuple[int, int] | None]) -> None:
            while (part := take()) is not None:
                self._gather(
                    first, p, alive_np.data_ptr(), starts.data_ptr(), found.data_ptr(), *part
                )

        shared_out(work, n)
        return found

    def layer_norm(
        self, grad_npk: Tensor, inputs_npk: Tensor, mean_np: Tensor, rstd_np: Tensor
    ) -> Tensor:
        """[2, n, k]: sums over positions of grad, and of grad * (inputs - mean) * rstd."""
        n, p, k = grad_npk.shape
        grad_npk, inputs_npk = with_rows(grad_npk), with_rows(inputs_npk)
        mean_np, rstd_np = mean_np.contiguous(), rstd_np.contiguous()
        first, second = rows(grad_npk), rows(inputs_npk)
        out = torch.empty(2, n, k, dtype=torch.float32)

        def work(take: Callable[[], tuple[int, int] | None]) -> None:
            while (part := take()) is not None:
                self._layer_norm(
                    first, second, mean_np.data_ptr(), rstd_np.data_ptr(), p, out.data_ptr(), n,
                    *part,
                )  # fmt: skip

        shared_out(work, n)
        return out

    def group_norm(
        self, grad_ncp: Tensor, inputs_ncp: Tensor, mean_nh: Tensor, rstd_nh: Tensor
    ) -> Tensor:
        """[2, n, c]: sums over positions of grad, and of grad * (inputs - mean) * rstd."""
        n, channels, p = grad_ncp.shape
        held = [t.contiguous() for t in (grad_ncp, inputs_ncp, mean_nh, rstd_nh)]
        addresses = [t.data_ptr() for t in held]
        out = torch.empty(2, n, channels, dtype=torch.float32)

        def work(take: Callable[[], tuple[int, int] | None]) -> None:
            while (part := take()) is not None:
                self._group_norm(
                    *addresses, channels, mean_nh.shape[1], p, out.data_ptr(), n, *part
                )

        shared_out(work, n)
        return out


def with_rows(values_npk: Tensor) -> Tensor:
    """Each row in one piece, wherever it lies."""
    return values_npk if values_npk.stride(2) == 1 else values_npk.contiguous()


def rows(values_npk: Tensor) -> ctypes.Array:
    """As the C code takes them; the tensor must outlive the call."""
    return (size * 4)(values_npk.data_ptr(), *values_npk.stride()[:2], values_npk.shape[2])


def shared_out(
    work: Callable[[Callable[[], tuple[int, int] | None]], None], num_samples: int
) -> None:
    """Calls `work` on torch's threads; each takes parts of the samples until none are left."""
    threads = min(torch.get_num_threads(), num_samples)
    step = -(-num_samples // (PIECES * threads))
    todo = collections.deque(
        (start, min(start + step, num_samples)) for start in range(0, num_samples, step)
    )

    def take() -> tuple[int, int] | None:
        try:
            return todo.popleft()
        except IndexError:
            return None

    on_all(lambda: work(take), threads)


@functools.cache
def loops() -> Loops | None:
    """The compiled loops, if they can be had and agree with torch."""
    library = _compiling.library(SOURCE)
    if library is None:
        return None
    found = Loops(library)
    return found if _agree(found) else None


def _agree(found: Loops) -> bool:
    """Tried on sizes that fill some tiles and others not."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    left, right, mean, rstd = random(3, 9, 32), random(3, 9, 37), random(3, 9), random(3, 9)
    inputs, grad = random(2, 4, 9, 7), random(2, 4, 4, 7)
    geometry = Geometry(4, 9, 7, 4, 4, 7, 1, (3, 2), (2, 1), (0, 1), (1, 2))
    patches = F.unfold(inputs, (3, 2), dilation=(1, 2), padding=(0, 1), stride=(2, 1))
    formed = torch.matmul(patches, grad.flatten(2).transpose(1, 2))
    beside = random(2, 4, 7, 7)  # a gradient where the stride is one
    in_steps_of_one = geometry._replace(out_height=7, stride=(1, 1))
    all_patches = F.unfold(inputs, (3, 2), dilation=(1, 2), padding=(0, 1))
    kept = random(2, 1, geometry.lines, found.padded(4))
    known, sums = random(3, found.gram_numbers(9)), random(3, 37)
    sparse = left * (random(3, 9, 1) > 0)
    alive = found.alive(sparse)
    starts = torch.cat([torch.zeros(1), alive.sum(1).cumsum(0)]).long()
    gathered = [found.gather(side, alive, starts).unsqueeze(0) for side in (sparse, right)]
    normalised = (right - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    expected = {
        "norms": square_sum(formed),
        "formed": formed,
        "pixels": square_sum(torch.matmul(all_patches, beside.flatten(2).transpose(1, 2))),
        "gram": square_sum(torch.matmul(left.transpose(1, 2), right)),
        "gram of known products": square_sum(torch.matmul(left.transpose(1, 2), left)),
        "sums": right.sum(1),
        "gram of some": square_sum(torch.matmul(sparse.transpose(1, 2), right)),
        "layer norm": torch.stack([right.sum(1), (right * normalised).sum(1)]),
        "group norm": torch.stack([right.sum(2), (right * normalised).sum(2)]),
    }
    given = {
        "norms": found.convolution(inputs, grad, geometry, kept),
        "formed": kept[:, 0, :, :4],
        "pixels": found.pixels(inputs, beside, in_steps_of_one)[0],
        "gram": found.gram(left, right, known, False, sums)[0],
        "gram of known products": found.gram(left, left, known, True)[0],
        "sums": sums,
        "gram of some": found.gram(gathered[0], gathered[1], starts=starts)[0],
        "layer norm": found.layer_norm(right, right, mean, rstd),
        "group norm": found.group_norm(right, right, mean, rstd),
    }
    return all(
        torch.allclose(given[name], expected[name], rtol=1e-4, atol=1e-4) for name in expected
    )


def square_sum(values_n: Tensor) -> Tensor:
    return values_n.flatten(1).square().sum(1)
