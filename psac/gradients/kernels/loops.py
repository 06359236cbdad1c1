"""Norms of per-sample gradients by loops compiled from C (loops.c), where there is a compiler.

    convolution  forms a sample's weight gradient in the cache, takes its norm, keeps or drops it;
                 `convolution_sum` adds it up, weighted
    depthwise    the same of one input channel, along rows of outputs
    pixels       the norm of a convolution's weight gradient, from inner products of pixels
    gram         the norm of a sum of outer products, from half of each symmetric Gram matrix
    pairs        the norm of one outer product
    scaling      rows times the weights of their samples, where they lie, and their sum
    alive        which rows are not all zero; `gather` puts those together
    lookup       the norm of rows that are added to a table; `lookup_sum` adds them, weighted
    layer_norm   sums over positions, of gradients and of their products with the inputs
    group_norm   the same, where positions stand last
    lstm         all steps of an LSTM, and `lstm_backward`

All are for float32 on the CPU, and do what the rules do in torch operations otherwise: `loops()` is
None where they cannot be compiled or disagree with those.  Samples are spread over torch's threads.

Letters: n sample, h group, p position, l = input channel x kernel, o output channel.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import pathlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.native import compiling
from psac.native.threads import call_on_all, compiled_function

SOURCE = pathlib.Path(__file__).with_suffix(".c")
PIECES = 4  # for each thread, so that a slow one does not keep the others waiting
BLOCK = 2**20  # bytes of a checksum
CHUNKS = 16  # of the samples of a weighted sum: one for each of so many threads
size = ctypes.c_int64
COUNTING = (
    *("lanes", "group", "gram_numbers", "gram_bytes", "some_alive"),
    *("convolution_bytes", "depthwise_bytes", "pixels_bytes", "lookup_bytes"),
    "lookup_columns",
)


# Of the mass that a Gram form adds up, what must be left for float32 to hold the norm to 1e-4.
CANCELLATION = 2e-3
WIDEST_STATE = 128  # of an LSTM whose weights stay in the cache
LOOKS = 64  # rows sampled to estimate how much is padding


class Guard(ctypes.Structure):
    """Sees a sum that has cancelled almost wholly."""

    _fields_ = (("least", ctypes.c_double), ("found", size))


class GramSum(NamedTuple):
    """Squared norms [n], and what they would be without cancellation."""

    squares: Tensor
    mass: Tensor
    cancelled: bool  # whether of some sample hardly anything is left


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
    frames: int = 1  # of a sample, one after another

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

    def in_memory(self, inputs_last: bool = False, grads_last: bool = False) -> ctypes.Array:
        """As the C code takes it; channels may stand last in memory."""
        pairs = (*self.kernel, *self.stride, *self.padding, *self.dilation)
        return (size * 18)(*self[:7], *pairs, self.frames, inputs_last, grads_last)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "psac-checksums")


class Loops:
    """The compiled functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._share = library, compiled_function(library.psac_share)
        for counting in COUNTING:
            getattr(library, f"psac_{counting}").restype = size
        self.lanes, self._group = int(library.psac_lanes()), int(library.psac_group())
        self._columns = int(library.psac_lookup_columns())
        self._parts: dict[str, int] = {}

    def _run(
        self, name: str, num_samples: int, *fields: int | None, memory: int = 0, step: int = 0
    ) -> None:
        """The function `psac_name` for all samples, on torch's threads.

        `fields` are those of its struct, integers and addresses; `memory` is how many bytes each
        thread needs for itself, `step` how many samples it takes at a time.
        """
        if name not in self._parts:
            address = ctypes.cast(getattr(self._library, f"psac_{name}"), ctypes.c_void_p).value
            assert address is not None
            self._parts[name] = address
        in_memory = (size * len(fields))(*[value or 0 for value in fields])
        threads = max(1, min(torch.get_num_threads(), num_samples))
        step = step or -(-num_samples // (PIECES * threads))
        work = (size * 7)(
            self._parts[name], ctypes.addressof(in_memory), memory, num_samples, step, 0, 0
        )
        call_on_all(self._share, ctypes.addressof(work), threads)
        if work[6]:
            raise MemoryError(f"{memory} bytes for each of {threads} threads cannot be had.")
        if work[5] < num_samples:
            raise RuntimeError(f"psac_{name} was not run for all {num_samples} samples.")

    def serves(self, *tensors: Tensor) -> bool:
        for tensor in tensors:
            if tensor.dtype is not torch.float32 or not tensor.is_cpu:
                return False
        return True

    def padded(self, out_channels: int) -> int:
        """How many output channels are kept: a multiple of the lanes, those beyond are zero."""
        return -(-out_channels // self.lanes) * self.lanes

    def _as_they_lie(
        self, inputs: Tensor, grad: Tensor, geometry: Geometry
    ) -> tuple[Tensor, Tensor, ctypes.Array]:
        """Inputs and gradients where they are, if their channels stand last, else in order."""
        one, whole = geometry.groups == 1, geometry.out_channels % self.lanes == 0
        inputs_last, grads_last = one and lies_last(inputs), one and whole and lies_last(grad)
        inputs = inputs if inputs_last else inputs.contiguous()
        grad = grad if grads_last else grad.contiguous()
        return inputs, grad, geometry.in_memory(inputs_last, grads_last)

    def convolution(
        self,
        inputs: Tensor,
        grad: Tensor,
        geometry: Geometry,
        kept: Tensor | None = None,
        sums: Tensor | None = None,
        mass: Tensor | None = None,
    ) -> Tensor:
        """Squared norms [n] of weight gradients, of inputs [n x frames, ...].

        `kept` [n, h, l, padded o] takes those; `sums` [n, h x o] the sums of `grad` over positions;
        `mass` [n] at least what norms would be if nothing cancelled.
        """
        inputs, grad, numbers = self._as_they_lie(inputs, grad, geometry)
        n = len(inputs) // geometry.frames
        squares = inputs.new_empty(n)
        self._run(
            "convolution", n, inputs.data_ptr(), grad.data_ptr(), address(kept), address(sums),
            squares.data_ptr(), address(mass), ctypes.addressof(numbers), None, None, None,
            memory=self._library.psac_convolution_bytes(numbers),
        )  # fmt: skip
        return squares

    def convolution_sum(
        self, inputs: Tensor, grad: Tensor, geometry: Geometry, weights_n: Tensor
    ) -> Tensor:
        """[h, l, padded o]: the weighted sum of weight gradients.

        A few samples at a time, as many as there are whatever the threads, have a sum of their own.
        """
        inputs, grad, numbers = self._as_they_lie(inputs, grad, geometry)
        n, padded = len(weights_n), self.padded(geometry.out_channels)
        weights_n, chunk = weights_n.contiguous(), max(1, -(-n // CHUNKS))
        sums = inputs.new_empty(-(-n // chunk), geometry.groups, geometry.lines, padded)
        self._run(
            "convolution", n, inputs.data_ptr(), grad.data_ptr(), sums.data_ptr(), None, None, None,
            ctypes.addressof(numbers), None, weights_n.data_ptr(), chunk,
            memory=self._library.psac_convolution_bytes(numbers), step=chunk,
        )  # fmt: skip
        return sums.sum(0)

    def depthwise(self, inputs: Tensor, grad: Tensor, geometry: Geometry, kept: Tensor) -> Tensor:
        """Squared norms [n] of weight gradients of one input channel, which `kept` takes."""
        inputs, grad, numbers = inputs.contiguous(), grad.contiguous(), geometry.in_memory()
        squares = inputs.new_empty(len(kept))
        self._run(
            "depthwise", len(kept), inputs.data_ptr(), grad.data_ptr(), kept.data_ptr(), None,
            squares.data_ptr(), None, ctypes.addressof(numbers), None, None, None,
            memory=self._library.psac_depthwise_bytes(numbers),
        )  # fmt: skip
        return squares

    def pixels(self, inputs: Tensor, grad: Tensor, geometry: Geometry) -> GramSum:
        """Squared norms [n] of weight gradients of stride one, and their diagonal part."""
        inputs, grad = inputs.contiguous(), grad.contiguous()
        squares, mass = inputs.new_empty(len(inputs)), inputs.new_empty(len(inputs))
        numbers, guard = geometry.in_memory(), Guard(CANCELLATION, 0)
        self._run(
            "pixels", len(inputs), inputs.data_ptr(), grad.data_ptr(), None, None,
            squares.data_ptr(), mass.data_ptr(), ctypes.addressof(numbers), ctypes.addressof(guard),
            memory=self._library.psac_pixels_bytes(numbers),
        )  # fmt: skip
        return GramSum(squares, mass, bool(guard.found))

    def gram(
        self,
        left_npl: Tensor,
        right_npr: Tensor,
        known: Tensor | None = None,
        filled: bool = False,
        sums_nr: Tensor | None = None,
        squares_n: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> GramSum:
        """Squared norms [n] of sum over p of left[n, p] x right[n, p], and their diagonal part.

        `known`, of `gram_numbers` for each sample, takes the inner products of the left side, or
        has them already (`filled`). `sums_nr` takes the sums of the right side over positions, and
        `squares_n` their squared norms.
        With `starts`, sides are [1, m, ...], and sample n has the rows starts[n] to starts[n + 1].
        """
        n, p, _ = left_npl.shape
        if starts is not None:
            n, p = len(starts) - 1, int(starts.diff().max())
        squares, mass = left_npl.new_empty(n), left_npl.new_empty(n)
        left_npl, right_npr = with_rows(left_npl), with_rows(right_npr)
        first, second, guard = rows(left_npl), rows(right_npr), Guard(CANCELLATION, 0)
        self._run(
            "gram", n, ctypes.addressof(first), ctypes.addressof(second), p, address(starts),
            squares.data_ptr(), mass.data_ptr(), address(known), filled, address(sums_nr),
            address(squares_n), ctypes.addressof(guard),
            memory=self._library.psac_gram_bytes(size(p)),
        )  # fmt: skip
        return GramSum(squares, mass, bool(guard.found))

    def gram_numbers(self, positions: int) -> int:
        """How many numbers the inner products of a sample's positions take."""
        return int(self._library.psac_gram_numbers(size(positions)))

    def pairs(self, left_nl: Tensor, right_nr: Tensor) -> tuple[Tensor, Tensor]:
        """[n], [n]: squared norms of left[n] x right[n], and of right[n]."""
        left_nl, right_nr = with_rows(left_nl), with_rows(right_nr)
        n, first, second = len(left_nl), rows(left_nl), rows(right_nr)
        products, squares = left_nl.new_empty(n), left_nl.new_empty(n)
        self._run(
            "pairs", n, ctypes.addressof(first), ctypes.addressof(second), products.data_ptr(),
            squares.data_ptr(),
        )  # fmt: skip
        return products, squares

    def scaling(self, rows_nk: Tensor, weights_n: Tensor) -> Tensor:
        """[k]: the sum of rows[n] * weights[n], which take the place of the rows.

        Each thread takes rows that lie together, as in the operations of torch that wrote them:
        they are in its cache.
        """
        (n, k), group = rows_nk.shape, self._group
        groups, weights_n = -(-n // group), weights_n.contiguous()
        sums = rows_nk.new_empty(groups, k)
        self._run(
            "scaling", n, rows_nk.data_ptr(), k, weights_n.data_ptr(), sums.data_ptr(),
            step=group * -(-groups // torch.get_num_threads()),
        )  # fmt: skip
        return sums.sum(0)

    def some_alive(self, values_npk: Tensor) -> float:
        """The share of rows that are not all zero, of some."""
        n, p, _ = values_npk.shape
        values_npk = with_rows(values_npk)
        first = rows(values_npk)
        looks = (size(n), size(p), size(LOOKS))
        return self._library.psac_some_alive(ctypes.byref(first), *looks) / LOOKS

    def max_pool(
        self, images: Tensor, kernel: Sequence[int], dilation: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """The largest number of each window, and its place in the plane; `images` [..., y, x]."""
        *leading, height, width = images.shape
        rows, columns = (
            size - d * (k - 1) for size, k, d in zip((height, width), kernel, dilation, strict=True)
        )
        outputs = images.new_empty(*leading, rows, columns)
        places = torch.empty(outputs.shape, dtype=torch.int64)
        self._run(
            "max_pool", math.prod(leading), images.data_ptr(), outputs.data_ptr(),
            places.data_ptr(), height, width, rows, columns, *kernel, *dilation,
            memory=8 * rows * width,
        )  # fmt: skip
        return outputs, places

    def checksums(self, tensors: Sequence[Tensor]) -> list[int]:
        """A number for the content of each; they must be contiguous.  Large ones on two threads."""
        counts = [max(1, -(-t.nbytes // BLOCK)) for t in tensors]
        blocks = [
            (t.data_ptr() + start, min(BLOCK, t.nbytes - start))
            for t, count in zip(tensors, counts, strict=True)
            for start in range(0, count * BLOCK, BLOCK)
        ]
        if len(blocks) < 4 + len(tensors) or torch.get_num_threads() == 1:
            sums = self._checksums(blocks)
        else:
            half = len(blocks) // 2
            second = _thread().submit(self._checksums, blocks[half:])
            sums = self._checksums(blocks[:half]) + second.result()
        if len(sums) == len(tensors):
            return sums
        following = iter(sums)
        return [
            next(following) if count == 1 else hash(tuple(itertools.islice(following, count)))
            for count in counts
        ]

    def _checksums(self, blocks: Sequence[tuple[int, int]]) -> list[int]:
        count = len(blocks)
        addresses = (size * count)(*[address for address, _ in blocks])
        sizes, sums = (size * count)(*[length for _, length in blocks]), (size * count)()
        self._library.psac_checksums(size(count), addresses, sizes, sums)
        return list(sums)

    def alive(self, values_npk: Tensor) -> Tensor:
        """[n, p], one where a row is not all zero."""
        n, p, _ = values_npk.shape
        values_npk = with_rows(values_npk)
        first = rows(values_npk)
        is_alive = torch.empty(n, p, dtype=torch.uint8)
        self._run("alive", n, ctypes.addressof(first), p, is_alive.data_ptr(), None, None)
        return is_alive

    def gather(self, values_npk: Tensor, alive_np: Tensor, starts: Tensor) -> Tensor:
        """[m, k]: the rows that are alive, one sample after another, which begin at `starts`."""
        n, p, width = values_npk.shape
        values_npk = with_rows(values_npk)
        first = rows(values_npk)
        rows_of_all = torch.empty(int(starts[-1]), width, dtype=torch.float32)
        self._run(
            "gather", n, ctypes.addressof(first), p, alive_np.data_ptr(), starts.data_ptr(),
            rows_of_all.data_ptr(),
        )  # fmt: skip
        return rows_of_all

    def lookup(self, index_np: Tensor, values_npk: Tensor) -> tuple[Tensor, Tensor]:
        """[n]: squared norms of the tables to whose rows `index` the values are added, and mass.

        An index of -1 adds nothing; others are below 2^31.
        """
        n, p, k = values_npk.shape
        index_np, values_npk = index_np.long().contiguous(), with_rows(values_npk)
        first, squares, mass = rows(values_npk), values_npk.new_empty(n), values_npk.new_empty(n)
        self._run(
            "lookup", n, ctypes.addressof(first), index_np.data_ptr(), p, squares.data_ptr(),
            mass.data_ptr(), memory=self._library.psac_lookup_bytes(size(p), size(k)),
        )  # fmt: skip
        return squares, mass

    def lookup_sum(
        self, index_np: Tensor, values_npk: Tensor, weights_n: Tensor, num_rows: int
    ) -> Tensor:
        """[num_rows, k]: the weighted sum of those tables."""
        n, p, k = values_npk.shape
        index_np, values_npk = index_np.long().contiguous(), with_rows(values_npk)
        first, weights_n = rows(values_npk), weights_n.contiguous()
        table, blocks = values_npk.new_zeros(num_rows, k), -(-k // self._columns)
        self._run(
            "lookup_sum", blocks, ctypes.addressof(first), index_np.data_ptr(), n, p,
            weights_n.data_ptr(), table.data_ptr(), step=-(-blocks // torch.get_num_threads()),
        )  # fmt: skip
        return table

    def layer_norm(
        self, grad_npk: Tensor, inputs_npk: Tensor, mean_np: Tensor, rstd_np: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Sums over positions of grad, and of grad * (inputs - mean) * rstd.

        Each is [n, k], and [n], the squared norms of those.
        """
        n, p, k = grad_npk.shape
        grad_npk, inputs_npk = with_rows(grad_npk), with_rows(inputs_npk)
        mean_np, rstd_np = mean_np.contiguous(), rstd_np.contiguous()
        first, second = rows(grad_npk), rows(inputs_npk)
        plain, scaled = ((grad_npk.new_empty(n, k), grad_npk.new_empty(n)) for _ in range(2))
        self._run(
            "layer_norm", n, ctypes.addressof(first), ctypes.addressof(second), mean_np.data_ptr(),
            rstd_np.data_ptr(), p, *(out.data_ptr() for out in (*plain, *scaled)),
        )  # fmt: skip
        return plain, scaled

    def group_norm(
        self, grad_ncp: Tensor, inputs_ncp: Tensor, mean_nh: Tensor, rstd_nh: Tensor
    ) -> Tensor:
        """[2, n, c]: sums over positions of grad, and of grad * (inputs - mean) * rstd."""
        n, channels, p = grad_ncp.shape
        held = [t.contiguous() for t in (grad_ncp, inputs_ncp, mean_nh, rstd_nh)]
        addresses = [t.data_ptr() for t in held]
        out = grad_ncp.new_empty(2, n, channels)
        groups = mean_nh.shape[1]
        self._run("group_norm", n, *addresses, channels, groups, p, n, out.data_ptr())
        return out

    def serves_lstm(self, width: int, gates: Tensor, *others: Tensor) -> bool:
        """Weights that stay in the cache, and a state that fills whole vectors."""
        fits = width % self.lanes == 0 and width <= WIDEST_STATE
        return fits and gates.is_contiguous() and self.serves(gates, *others)

    def lstm(
        self, gates: Tensor, states: Tensor, cells: Tensor, squashed: Tensor, hidden: Tensor
    ) -> None:
        """Of gates [n, t, b, 4h] from the inputs; of states and cells [t + 1, m, h] the first is
        there.  What is missing is put in its place, the hyperbolic tangents of cells in `squashed`.
        """
        self._recur("lstm", gates, states, cells, squashed, hidden.t().contiguous())

    def lstm_backward(
        self, gates: Tensor, cells: Tensor, squashed: Tensor, hidden: Tensor,
        d_outputs: Tensor, d_cell: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of the gates, and of the first state and cell."""
        found, first_state, first_cell = map(torch.empty_like, (gates, cells[0], cells[0]))
        given = d_outputs.contiguous(), d_cell.contiguous(), found, first_state, first_cell
        self._recur("lstm_backward", gates, None, cells, squashed, hidden.contiguous(), *given)
        return found, first_state, first_cell

    def _recur(self, name: str, gates: Tensor, *given: Tensor | None) -> None:
        n, steps, sequences, width = gates.shape
        addresses = [address(tensor) for tensor in (gates, *given)]
        sizes = width // 4, steps, n * sequences, sequences
        self._run(name, n * sequences, *addresses[:5], *sizes, *addresses[5:])


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def lies_last(tensor: Tensor) -> bool:
    """Whether channels stand last in memory, and that is not the ordinary order."""
    last = torch.channels_last
    return not tensor.is_contiguous() and tensor.is_contiguous(memory_format=last)


def with_rows(values: Tensor) -> Tensor:
    """Each row in one piece, wherever it lies."""
    return values if values.stride(-1) == 1 else values.contiguous()


def rows(values: Tensor) -> ctypes.Array:
    """[n, p, k], or [n, k] with one row a sample, as the C code takes them.

    The tensor must outlive the call.
    """
    *strides, _ = values.stride()
    return (size * 4)(values.data_ptr(), strides[0], strides[-1], values.shape[-1])


@functools.cache
def loops() -> Loops | None:
    """The compiled loops, if they can be had and agree with torch."""
    library = compiling.library(SOURCE)
    if library is None:
        return None
    compiled = Loops(library)
    with torch.autocast("cpu", enabled=False):  # what the loops are compared with stays float32
        return compiled if _agree(compiled) else None


def _agree(compiled: Loops) -> bool:
    """Tried on sizes that fill some tiles and others not."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    def last(images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)

    left, right, mean, rstd = random(3, 9, 32), random(3, 9, 37), random(3, 9), random(3, 9)
    inputs, grad = random(2, 4, 9, 7), random(2, 4, 4, 7)
    geometry = Geometry(4, 9, 7, 4, 4, 7, 1, (3, 2), (2, 1), (0, 1), (1, 2))
    patches = F.unfold(inputs, (3, 2), dilation=(1, 2), padding=(0, 1), stride=(2, 1))
    formed = torch.matmul(patches, grad.flatten(2).transpose(1, 2))
    beside = random(2, 4, 7, 7)  # a gradient where the stride is one
    broad, of_broad = (
        random(2, compiled.lanes, 4, 7),
        geometry._replace(out_channels=compiled.lanes),
    )
    in_steps_of_one = geometry._replace(out_height=7, stride=(1, 1))
    all_patches = F.unfold(inputs, (3, 2), dilation=(1, 2), padding=(0, 1))
    kept, weights = random(2, 1, geometry.lines, compiled.padded(4)), random(2)
    known, sums, of_channels = random(3, compiled.gram_numbers(9)), random(3, 37), random(2, 4)
    sparse, of_sums = left * (random(3, 9, 1) > 0), random(3)
    alive = compiled.alive(sparse)
    starts = torch.cat([torch.zeros(1), alive.sum(1).cumsum(0)]).long()
    gathered = [compiled.gather(side, alive, starts).unsqueeze(0) for side in (sparse, right)]
    normalised = (right - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    layer_norm = torch.stack([right.sum(1), (right * normalised).sum(1)])
    scaled = right[:, 0].contiguous()
    sum_of_scaled = compiled.scaling(scaled, mean[:, 0])
    index = torch.tensor([[0, 2, 0, -1, 1, 4, 2, 2, 3]]).expand(3, 9)
    added = right.new_zeros(3, 5, 37).index_add_(1, index[0, :3], right[:, :3])
    added.index_add_(1, index[0, 4:], right[:, 4:])
    of_layer_norm = list(zip(*compiled.layer_norm(right, right, mean, rstd), strict=True))
    recurred, of_lstm = _lstm(
        compiled, random(3, 3, 2, 4 * compiled.lanes), random(2, 6, compiled.lanes)
    )
    of_one, thin = geometry._replace(channels=1, out_channels=1, groups=4), random(2, 4, 1, 3, 2)
    expected = {
        "lstm": of_lstm,
        "max pool": torch.stack(F.max_pool2d(inputs, (2, 3), 1, 0, (2, 1), return_indices=True)),
        "depthwise": torch.stack(
            [p @ g for p, g in zip(patches.view(8, 6, 28), grad.view(8, 28), strict=True)]
        ).view(2, 4, 1, 3, 2),
        "norms": square_sum(formed),
        "formed": formed,
        "sum of formed": (formed * weights.view(2, 1, 1)).sum(0),
        "norms of two frames": square_sum(formed.sum(0, keepdim=True)),
        "channels last": square_sum(torch.matmul(patches, broad.flatten(2).transpose(1, 2))),
        "pixels": square_sum(torch.matmul(all_patches, beside.flatten(2).transpose(1, 2))),
        "gram": square_sum(torch.matmul(left.transpose(1, 2), right)),
        "gram of known products": square_sum(torch.matmul(left.transpose(1, 2), left)),
        "sums": right.sum(1),
        "squares of sums": square_sum(right.sum(1)),
        "pairs": square_sum(left[:, 0]) * square_sum(right[:, 0]),
        "scaled": right[:, 0] * mean[:, :1],
        "sum of scaled": (right[:, 0] * mean[:, :1]).sum(0),
        "sums of channels": grad.sum((2, 3)),
        "gram of some": square_sum(torch.matmul(sparse.transpose(1, 2), right)),
        "some alive": torch.ones(()),
        "lookup": square_sum(added),
        "sum of lookups": (added * mean[:, :1, None]).sum(0),
        "layer norm": layer_norm,
        "squares of layer norm": layer_norm.square().sum(2),
        "group norm": torch.stack([right.sum(2), (right * normalised).sum(2)]),
    }
    compiled.depthwise(inputs, grad, of_one, thin)
    results = {
        "lstm": recurred,
        "depthwise": thin,
        "max pool": torch.stack(compiled.max_pool(inputs, (2, 3), (2, 1))),
        "norms": compiled.convolution(inputs, grad, geometry, kept, of_channels),
        "formed": kept[:, 0, :, :4],
        "sum of formed": compiled.convolution_sum(inputs, grad, geometry, weights)[0, :, :4],
        "norms of two frames": compiled.convolution(inputs, grad, geometry._replace(frames=2)),
        "channels last": compiled.convolution(last(inputs), last(broad), of_broad),
        "pixels": compiled.pixels(inputs, beside, in_steps_of_one)[0],
        "gram": compiled.gram(left, right, known, False, sums, of_sums)[0],
        "gram of known products": compiled.gram(left, left, known, True)[0],
        "sums": sums,
        "squares of sums": of_sums,
        "pairs": compiled.pairs(left[:, 0], right[:, 0])[0],
        "scaled": scaled,
        "sum of scaled": sum_of_scaled,
        "sums of channels": of_channels,
        "gram of some": compiled.gram(gathered[0], gathered[1], starts=starts)[0],
        "some alive": torch.tensor(compiled.some_alive(left) - compiled.some_alive(0 * left)),
        "lookup": compiled.lookup(index, right)[0],
        "sum of lookups": compiled.lookup_sum(index, right, mean[:, 0], 5),
        "layer norm": torch.stack(of_layer_norm[0]),
        "squares of layer norm": torch.stack(of_layer_norm[1]),
        "group norm": compiled.group_norm(right, right, mean, rstd),
    }
    return all(
        torch.allclose(results[name], expected[name], rtol=1e-4, atol=1e-4) for name in expected
    )


def _lstm(found: Loops, gates: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and all gradients, by the loops and by torch."""
    steps, width = gates.shape[1], gates.shape[3] // 4
    hidden = torch.arange(4.0 * width * width).mul_(0.7).sin_().view(4 * width, width) / 4
    states, cells = given.unsqueeze(1).repeat(1, steps + 1, 1, 1)
    squashed, d_outputs = torch.empty_like(cells[1:]), gates[..., :width].cos()
    with torch.enable_grad():
        leaves = [t.clone().requires_grad_() for t in (gates, states[0], cells[0])]
        total, h, c = leaves
        outputs = []
        for one in total.transpose(0, 1).flatten(1, 2):
            i, f, g, o = (one + h @ hidden.t()).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        out = torch.stack(outputs).unflatten(1, (len(gates), -1)).transpose(0, 1)
        grads = torch.autograd.grad([out, c], leaves, [d_outputs, c.detach()])
    gates = gates.clone()
    found.lstm(gates, states, cells, squashed, hidden)
    ours = found.lstm_backward(gates, cells, squashed, hidden, d_outputs, cells[-1])
    parts = states[1:].unflatten(1, (len(gates), -1)).transpose(0, 1), *ours
    theirs = out.detach(), *grads
    return tuple(torch.cat([t.flatten() for t in side]) for side in (parts, theirs))  # type: ignore[return-value]


def square_sum(values_n: Tensor) -> Tensor:
    return values_n.flatten(1).square().sum(1)
