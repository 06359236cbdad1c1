"""Checks that the user's `collate_fn` keeps records apart.

Under Poisson sampling a record's gradient must be a function of that record alone.  A `collate_fn`
that normalises by the batch, sorts, mixes records (mixup) or numbers them by position lets one
record change another, and the clipped sum is then not private.  `IsolatedCollate` wraps the
function and refuses it; the checks are in `psac.loading.collation.check`.

Left to others: what happens after collation (the model and the loss), what the data set does to a
record before it, and the length that padding gives to a record (`pads`,
`psac.loading.collation.buckets`).

>>> import torch
>>> rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
>>> IsolatedCollate()(rows)
tensor([[1., 2.],
        [3., 4.]])
>>> IsolatedCollate(lambda rows: torch.stack(rows) / torch.stack(rows).max())(rows)
... # doctest: +ELLIPSIS
Traceback (most recent call last):
psac.gradients.errors.NotIsolated: ... batch of record 0 of 2 differs from the same record ...
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from psac.loading.collation.check import Check
from psac.loading.collation.generators import generators_of, restore, saved
from psac.loading.collation.parts import Leaves

FIRST_CHECKS = 3  # calls with at least two records that are checked for certain
CALLS_PER_CHECK = 16  # afterwards, on average


class IsolatedCollate:
    """Calls `collate_fn` (default: torch's) and returns what it returns, or raises `NotIsolated`.

    On every call: each tensor of the batch has as many entries along its first axis as there are
    samples, and classes, keys and contexts around the tensors are those of the first batch.  On the
    first three calls with two samples or more, and then on secret calls, with probability 1/16, the
    first, the last and a secret third record are checked as `psac.loading.collation.check.Check`
    states.  After a refusal the next three calls are checked.

    A check calls `collate_fn` again, on copies of the samples, and restores every generator that
    `psac.loading.collation.generators` finds: checked and unchecked calls draw the same numbers.

    It can be pickled if `collate_fn` can, and called in workers; each worker counts its own calls.
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self.collate_fn = default_collate if collate_fn is None else collate_fn
        self._certain = FIRST_CHECKS  # checks that are still due
        self._shapes: dict[str, torch.Size] = {}  # of a record, by leaf, in the first batch
        self._padding: dict[str, Tensor] = {}  # the constant behind a record, by leaf
        self._arrangement: dict[str, tuple] = {}  # what surrounds the leaves
        self._pads = torch.zeros(1, dtype=torch.uint8).share_memory_()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pads.share_memory_()

    @property
    def pads(self) -> bool:
        """Whether a record has been seen whose length comes from its batch.

        That shows in a batch of another length than the first, and in a checked record that is
        longer in the batch than alone.  Workers of a DataLoader share this flag with the process
        that started them.
        """
        return bool(self._pads)

    def __call__(self, samples: list[Any]) -> Any:
        if not self._due(len(samples)):
            batch = self.collate_fn(samples)
            self._compare_shapes(self._check([]).leaves(batch, len(samples)))
            return batch
        originals = [copy.deepcopy(sample) for sample in samples]
        before = saved(generators_of(self.collate_fn))
        batch = self.collate_fn(samples)
        generators = generators_of(self.collate_fn)  # again: the call may have made one
        after, check = saved(generators), self._check(generators)
        certain, self._certain = self._certain, FIRST_CHECKS
        try:
            leaves = check.leaves(batch, len(samples))
            check(originals, leaves, random=before != after)
        finally:
            restore(generators, after)
        self._certain = max(certain - 1, 0)
        self._compare_shapes(leaves)
        if check.pads:
            self._pads.fill_(1)
        return batch

    def _due(self, num_samples: int) -> bool:
        if num_samples < 2:
            return False
        return self._certain > 0 or secrets.randbelow(CALLS_PER_CHECK) == 0

    def _check(self, generators: list[Any]) -> Check:
        return Check(self.collate_fn, generators, self._padding, self._arrangement)

    def _compare_shapes(self, leaves: Leaves) -> None:
        for name, leaf in leaves.items():
            if self._shapes.setdefault(name, leaf.shape[1:]) != leaf.shape[1:]:
                self._pads.fill_(1)
