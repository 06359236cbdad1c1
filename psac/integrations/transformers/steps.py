"""The logical steps of a private run as the batches of a Trainer.

transformers.Trainer takes one batch for each update.  Here an update is a logical step: its
"batch" is an iterator over the physical batches, of which an empty draw has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch.utils.data import DataLoader, Dataset

from psac.private import Private


class Steps(Dataset):
    """`num_steps` an epoch; whatever number is asked for, the run's next step is given.

    So a Trainer that skips numbers, because it resumes in the middle of an epoch, skips no draw.
    """

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._following: Iterator[Iterator[Any]] = iter(())

    def follow(self, private: Private) -> None:
        """From here on, steps are those of the run."""
        self._following = every_step(private)

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, number: int) -> Iterator[Any]:
        if number >= self._num_steps:
            raise IndexError(number)
        return next(self._following)

    def loader(self) -> DataLoader:
        """What a Trainer iterates."""
        return DataLoader(self, batch_size=1, collate_fn=only)


def every_step(private: Private) -> Iterator[Iterator[Any]]:
    """Pass after pass; the run itself ends them, when the plan is done."""
    while True:
        yield from private.loader.steps()


def only(items: list[Any]) -> Any:
    (item,) = items
    return item


class Stepped(AcceleratedOptimizer):
    """The optimizer as a Trainer sees it: `private.step` has already stepped it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._is_accelerate_prepared = True  # accelerate wraps it no more

    def step(self, closure: Any = None) -> None:
        """Nothing: the step was taken with the noisy gradient, when the run released it."""


def plain(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """torch's own, in whatever it is wrapped."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer
