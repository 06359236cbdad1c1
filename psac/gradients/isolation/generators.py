"""The random generators that user code draws from: torch's, numpy's and Python's own.

How often a function draws may follow from its records: from the paths that they take, or from the
number of physical batches.  So it never draws from the user's streams.  It has its own, and when it
is done, the user's are where they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

INSTANCE: Any = random._inst  # type: ignore[attr-defined]  # behind random.random and the like
NUMPY: Any = np.random
WORDS = 625  # of Python's generator: an index, and the state of a Mersenne twister
spare: list[Any] = []  # bit generators of numpy that nobody uses


def memory_of(generator: Any) -> Any:
    """Where CPython keeps the state, which getstate() reads slowly; None if it is elsewhere."""
    size = ctypes.sizeof(ctypes.c_uint32 * WORDS)
    if random.Random.__bases__[0].__basicsize__ < object.__basicsize__ + size:
        return None
    memory = (ctypes.c_uint32 * WORDS).from_address(id(generator) + object.__basicsize__)
    *words, index = generator.getstate()[1]
    return memory if list(memory) == [index, *words] else None


MEMORY = memory_of(INSTANCE)


def state_of_python() -> Any:
    return random.getstate() if MEMORY is None else (bytes(MEMORY), INSTANCE.gauss_next)


def put_state_of_python(state: Any) -> None:
    if MEMORY is None:
        random.setstate(state)
        return
    words, INSTANCE.gauss_next = state
    ctypes.memmove(MEMORY, words, len(words))


class Generators:
    """Where the generators are now; `restore` brings them back."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._numpy, self._python = np.random.get_state(), state_of_python()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)
        put_state_of_python(self._python)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


@contextlib.contextmanager
def own_numbers(seed: int) -> Iterator[None]:
    """In here what numpy and Python draw follows from the seed; outside nothing was drawn."""
    ours, of_numpy = spare.pop() if spare else np.random.MT19937(), NUMPY.get_bit_generator()
    of_python = state_of_python()
    NUMPY.set_bit_generator(ours)
    try:
        seed_numbers(seed)
        yield
    finally:
        NUMPY.set_bit_generator(of_numpy)
        put_state_of_python(of_python)
        spare.append(ours)


@contextlib.contextmanager
def own_generators(seed: int) -> Iterator[None]:
    """The same for torch, too."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with own_numbers(seed), torch.random.fork_rng(devices=devices):
        seed_torch(seed)
        yield


def same_generators() -> contextlib.AbstractContextManager[None]:
    """What is drawn in here is not missed outside."""
    return own_generators(0)


@contextlib.contextmanager
def own_draws_of_torch(seed: int) -> Iterator[None]:
    """The same for torch alone: under vmap, numpy and Python draw the same for all records."""
    if torch.cuda.is_initialized():
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            seed_torch(seed)
            yield
        return
    before = torch.default_generator.get_state()
    try:
        seed_torch(seed)
        yield
    finally:
        torch.default_generator.set_state(before)


def seed_all(seed: int) -> None:
    seed_torch(seed)
    seed_numbers(seed)


def seed_torch(seed: int) -> None:
    # torch.manual_seed keeps a list of its calls for devices that are not there yet.
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed % 2**63)


def seed_numbers(seed: int) -> None:
    np.random.seed(seed % 2**32)
    random.seed(seed % 2**63)
