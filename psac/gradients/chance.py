"""The random generators that user code draws from: torch's, numpy's and Python's own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


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
