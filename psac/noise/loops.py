"""The inner loop of `psac.noise.gaussian`, twice: as torch operations, and compiled from C.

The compiled one is used where the user's machine has a C compiler and its results agree with the
first.  Where the processor has instructions for AES it makes the keystream, too.
"""

import array
import collections
import ctypes
import functools
import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from psac.native import compiling
from psac.native.threads import call_on_all, compiled_function, on_all
from psac.noise.generators import PADDING, write_keystream

CHUNK = 2**17  # Numbers drawn at a time: a megabyte of keystream, to stay in the cache.
BLOCK = 64  # Pairs at a time; of their words of keystream the first half are radii, then angles.
SOURCE = pathlib.Path(__file__).with_suffix(".c")


class Piece(NamedTuple):
    """Some entries of one tensor, at most CHUNK, which have a stream of their own."""

    tensor: int
    start: int
    stop: int


class Streams(NamedTuple):
    """Where the bits are: the stream of piece i is named by the key and first_nonce + i."""

    key: bytes
    first_nonce: int


class Law(NamedTuple):
    """What is public about a release."""

    std: float
    grid: float
    scale: float


class TorchLoops:
    """The definition, and what runs where there is no compiler.

    out = scale * (round(sums, clamped to 2^50 grid) + round(noise)), where `round` goes to the
    grid; sums and out are contiguous, both of float32 or both of float64.
    """

    def __init__(self) -> None:
        self._scratch = torch.empty(3, CHUNK, dtype=torch.float64)  # Allocating is slow.

    def add_noise(
        self,
        streams: Streams,
        pieces: Sequence[Piece],
        sums: Sequence[Tensor],
        out: Sequence[Tensor],
        law: Law,
    ) -> None:
        """For all entries of all pieces, on as many threads as torch has."""
        stream = _Stream(pieces)
        for nonce, (tensor, start, stop) in enumerate(pieces, streams.first_nonce):
            words = stream.words(streams.key, nonce, stop - start)
            addends, sinks = (each[tensor].view(-1)[start:stop] for each in (sums, out))
            self.add_words(words, addends, sinks, law)

    def add_words(self, words: Tensor, sums: Tensor, out: Tensor, law: Law) -> None:
        """For a flat tensor, from given words: whole blocks, at least as many as entries."""
        noise = self.gaussians(words, law.std)[: len(sums)]
        # Beside the anchor, float64 has no finer digits than the grid: this rounds both.
        anchor, limit = 1.5 * 2.0**52 * law.grid, 2.0**50 * law.grid
        total = self._scratch[0, : len(sums)].copy_(sums).clamp_(-limit, limit)
        total.sub_(anchor).add_(noise.add_(anchor))
        out.copy_(total if law.scale == 1 else total.mul_(law.scale))

    def gaussians(self, words: Tensor, std: float) -> Tensor:
        """Box-Muller: one radius and one angle give two numbers.

        A radius has the sign of its word, so that angles of half a circle make a whole one.
        """
        rows = self._scratch[:, : len(words)].view(3, 2, -1, BLOCK)
        signed, angle = rows[0].copy_(words.view(-1, 2, BLOCK).transpose(0, 1))
        radius, wave = rows[1]
        noise = self._scratch[2, : len(words)]
        cosines, sines = noise.view(-1, 2, BLOCK).unbind(1)
        signed.mul_(2.0**-63).add_(2.0**-64)  # All odd multiples of 2^-64 between -1 and 1.
        torch.abs(signed, out=radius).log_().mul_(-2 * std * std).sqrt_().copysign_(signed)
        angle.mul_(math.pi * 2.0**-64)
        torch.mul(torch.cos(angle, out=wave), radius, out=cosines)
        torch.mul(torch.sin(angle, out=wave), radius, out=sines)
        return noise


class CompiledLoops:
    """`TorchLoops` in C, several times faster; calls release the interpreter's lock."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer = ctypes.c_void_p
        self._makes_keystream = bool(library.psac_makes_keystream())
        self._add_words = library.psac_add_words
        self._add_words.argtypes, self._add_words.restype = [pointer, pointer, _Law], None
        if self._makes_keystream:
            self._add_noise = compiled_function(library.psac_add_noise)

    def add_noise(
        self,
        streams: Streams,
        pieces: Sequence[Piece],
        sums: Sequence[Tensor],
        out: Sequence[Tensor],
        law: Law,
    ) -> None:
        rows, c_law = _rows(pieces, sums, out), _Law(*law)
        address = rows.buffer_info()[0]
        # Waking a thread for little work does not pay.
        num_threads = 1 + sum(total.numel() for total in sums) // CHUNK
        num_threads = min(torch.get_num_threads(), num_threads)
        if self._makes_keystream:
            work = _Work(address, len(pieces), 0, *streams, c_law)
            call_on_all(self._add_noise, ctypes.addressof(work), num_threads)
            if work.taken < len(pieces):
                raise RuntimeError("no thread made the noise.")
            return
        todo = collections.deque(enumerate(pieces))  # Threads may take from it at once.

        def work_on_given_keystream() -> None:
            stream = _Stream(pieces)
            while todo:
                try:
                    i, piece = todo.popleft()
                except IndexError:  # Another thread took the last one.
                    return
                words = stream.words(streams.key, streams.first_nonce + i, piece.stop - piece.start)
                self._add_words(address + i * _ROW_BYTES, words.data_ptr(), c_law)

        on_all(work_on_given_keystream, num_threads)

    def add_words(self, words: Tensor, sums: Tensor, out: Tensor, law: Law) -> None:
        rows = _rows([Piece(0, 0, len(sums))], [sums], [out])
        self._add_words(rows.buffer_info()[0], words.data_ptr(), _Law(*law))


Loops = TorchLoops | CompiledLoops


class _Law(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in Law._fields]


class _Work(ctypes.Structure):
    _fields_ = [
        ("pieces", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("taken", ctypes.c_int64),
        ("key", ctypes.c_char_p),
        ("first_nonce", ctypes.c_uint64),
        ("law", _Law),
    ]


_ROW_BYTES = 4 * 8


def _rows(
    pieces: Sequence[Piece], sums: Sequence[Tensor], out: Sequence[Tensor]
) -> "array.array[int]":
    """The struct `piece` of the C file for each: addresses, number of entries, whether float64."""
    rows = array.array("q")
    for tensor, start, stop in pieces:
        total = sums[tensor]
        size = total.element_size()
        source, sink = total.data_ptr() + start * size, out[tensor].data_ptr() + start * size
        rows.extend((source, sink, stop - start, size == 8))
    return rows


class _Stream:
    """Room for the keystream of one piece at a time."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        longest = _whole_blocks(max((piece.stop - piece.start for piece in pieces), default=1))
        self._bytes = bytearray(8 * longest + PADDING)
        self._words = torch.frombuffer(self._bytes, dtype=torch.int64, count=longest)

    def words(self, key: bytes, nonce: int, count: int) -> Tensor:
        count = _whole_blocks(count)
        write_keystream(key, nonce, _ZEROS[: 8 * count], self._bytes)
        return self._words[:count]


_ZEROS = memoryview(bytes(8 * CHUNK))


def _whole_blocks(count: int) -> int:
    return -(-count // (2 * BLOCK)) * 2 * BLOCK


@functools.cache
def compiled() -> CompiledLoops | None:
    """The compiled loop, or None where it cannot be had."""
    library = compiling.library(SOURCE)
    if library is None:
        return None
    loops = CompiledLoops(library)
    return loops if _agree(loops, TorchLoops()) else None


def _agree(loops: Loops, definition: TorchLoops) -> bool:
    """Guards against compilers that reorder arithmetic unasked, which would undo the rounding."""
    streams, pieces = Streams(bytes(range(16)), 2**40), [Piece(0, 0, 300), Piece(0, 300, 40_001)]
    sums = torch.linspace(-9.0, 9.0, 40_001, dtype=torch.float64)
    # One coarse grid, where rounding is all that is seen, and one so fine that it is not.
    for grid, tolerance in ((2.0**-10, 0.0), (2.0**-45, 1e-13)):
        first, second = torch.empty_like(sums), torch.empty_like(sums)
        law = Law(3.0, grid, 0.5)
        loops.add_noise(streams, pieces, [sums], [first], law)
        definition.add_noise(streams, pieces, [sums], [second], law)
        if not torch.allclose(first, second, rtol=0, atol=tolerance):
            return False
    return True
