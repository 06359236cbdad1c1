"""Canaries in a user's own run: a lower bound from a single training run (arXiv:2305.08846).

    canaries = Canaries(dataset, records)          # each of `records` is in by a fair coin
    private = psac.make_private(model, optimizer, canaries.dataset, ...)
    ...                                            # train as always
    print(canaries.lower_bound(scores, delta=1e-5))   # a score for each of `records`

Choose `records` that the model cannot learn from others: wrong labels, random texts.  The score of
a record says how much the trained model seems to have seen it, such as minus its loss.

Guarantees: the coins are fair, independent and from the operating system.  The bound holds for any
scores computed from what the run released, for any sampling, under add/remove of one canary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

from psac.auditing.bounds import Bound, Vector, one_run_lower_bound
from psac.auditing.step import coins
from psac.loading.dataset import dataset_of


class Canaries:
    """A data set with some of the canaries; `members` says which, and must stay out of training."""

    def __init__(self, dataset: Any, records: Any, *, seed: int | None = None) -> None:
        """`seed` makes the coins repeatable; anyone who knows it knows the members."""
        records = dataset_of(records)
        self.members: np.ndarray = coins(len(records), seed)
        included = Subset(_AsDataset(records), np.flatnonzero(self.members).tolist())
        self.dataset: Dataset = ConcatDataset([_AsDataset(dataset_of(dataset)), included])

    def lower_bound(
        self,
        scores: Vector,
        *,
        delta: float,
        confidence: float = 0.95,
        guesses: Sequence[tuple[int, int]] | None = None,
    ) -> Bound:
        """The lower bound on epsilon from the scores of all canaries, members or not."""
        return one_run_lower_bound(
            scores, self.members, delta=delta, confidence=confidence, guesses=guesses
        )


class _AsDataset(Dataset):
    """A Dataset around lists and tensors, which `ConcatDataset` needs."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> Any:
        return self.records[number]
