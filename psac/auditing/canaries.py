"""Canaries in a user's own run: one training, one lower bound (arXiv:2305.08846).

    canaries = Canaries(dataset, records)          # each of `records` is in by a fair coin
    private = psac.make_private(model, optimizer, canaries.dataset, ...)
    ...                                            # train as always
    print(canaries.lower_bound(scores, delta=1e-5))   # a score for each of `records`

`records` are such as the model would not learn from others: wrong labels, random texts.  The score
of a record says how much the trained model seems to have seen it, as does minus its loss.

Guarantees: the coins are fair, independent and from the operating system.  The bound holds for any
scores that are computed from what the run released; it holds with sampling as with all else, and
under add/remove of one canary.
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
    """A data set with some of the canaries in it; `members` says which, and is not for training."""

    def __init__(self, dataset: Any, records: Any, *, seed: int | None = None) -> None:
        """`seed` repeats the coins; whoever knows it knows the members."""
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
        """What the scores of all canaries, in or not, show about epsilon."""
        return one_run_lower_bound(
            scores, self.members, delta=delta, confidence=confidence, guesses=guesses
        )


class _AsDataset(Dataset):
    """Lists and tensors have no `__add__` that concatenates; torch wants the type."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> Any:
        return self.records[number]
