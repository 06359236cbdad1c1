"""The random generators that user code draws from: torch's, numpy's and Python's own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


class Generators:
    """Where the generators are now; `restore` brings them back."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._numpy, self._python = np.random.get_state(), random.getstate()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


@contextlib.contextmanager
def same_generators() -> Iterator[None]:
    """What is drawn in here is not missed outside."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def seed_all(seed: int) -> None:
    seed %= 2**63
    # torch.manual_seed keeps a list of its calls for devices that are not there yet.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def own_generators(seed: int) -> Iterator[None]:
    """In here all draws follow from the seed; outside nothing was drawn."""
    with same_generators():
        seed_all(seed)
        yield


@contextlib.contextmanager
def own_draws_of_torch(seed: int) -> Iterator[None]:
    """The same for torch alone: under vmap, numpy and Python draw the same for all records."""
    if torch.cuda.is_initialized():
        with own_generators(seed):
            yield
        return
    before = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(seed % 2**63)
        yield
    finally:
        torch.default_generator.set_state(before)
