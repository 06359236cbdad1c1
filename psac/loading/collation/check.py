"""Whether a `collate_fn` keeps records apart; `IsolatedCollate` decides when to check.

`Check` states what is checked.  It can miss a dependence that few records show, and, within a leaf
of random numbers, an effect of position or length below their noise.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from psac.gradients import trees
from psac.gradients.errors import NotIsolated
from psac.loading.collation.generators import restore, saved
from psac.loading.collation.parts import (
    Draws,
    Finding,
    Leaves,
    behind,
    constant,
    difference,
    named_leaves,
    padded,
    same,
    unlike,
)

POOL = 16  # records that a random collate_fn is tested with
# An entry that is as random alone as in the batch is that far apart in 64 draws with probability at
# most 2 C(128, 64 + 44) / C(128, 64) = 1e-14 (Kolmogorov-Smirnov, exact; ties make it less).
DRAWS, APART = 64, 44
CONFIRMATIONS = 16


class Check:
    """One check of one batch; raises `NotIsolated` if a record changes another.

    The first, the last and a secret third record are checked:

    - The record's part of the batch equals the record collated alone, bit for bit (NaN equals
      NaN).  Padding may follow along later axes: one constant per leaf, the same in every batch.
      The place right behind the record may differ: labels shifted to be decoder inputs reach it.
    - Padding does not change when the other records of the batch do.

    With a `collate_fn` that draws random numbers, which shows in one of `generators`, a record in
    the batch and alone need not be equal.  Then up to 16 records of the batch are used, and:

    - The record does not change when the others are replaced by copies of one record, while the
      lengths and the random numbers stay the same.  Lists that draw different amounts of numbers
      are not compared.
    - No entry of the record has a distribution far from that of the record alone, in 64 draws of
      each.  Entries that are not random are thereby compared exactly.

    What surrounds the tensors (classes, keys, the contexts of registered classes) is the same in
    every batch, checked or not.

    `padding` collects the constants by leaf, `arrangement` what surrounds them.  `pads` becomes
    true if a checked record is longer in the batch than alone.
    """

    def __init__(
        self,
        collate_fn: Callable[[list[Any]], Any],
        generators: list[Any],
        padding: Leaves,
        arrangement: dict[str, tuple],
    ) -> None:
        self.collate_fn, self.generators = collate_fn, generators
        self.padding, self.arrangement = padding, arrangement
        self.pads = False

    def __call__(self, samples: list[Any], leaves: Leaves, *, random: bool) -> None:
        last = len(samples) - 1
        numbers = sorted({0, last, secrets.randbelow(last + 1)})
        if random:
            pool, positions = _pool(samples, numbers)
            self._compare_draws(pool, positions)
            for position in positions:
                self._replace_others(pool, position, rounds=4)
            return
        for number in numbers:
            if self._compare_alone(samples, leaves, number):
                pool, (position,) = _pool(samples, [number])
                self._replace_others(pool, position, rounds=2)

    def leaves(self, batch: Any, num_samples: int) -> Leaves:
        """The leaves of a batch, each with the records along its first axis."""
        leaves = named_leaves(batch)
        for name, leaf in leaves.items():
            if leaf.layout is not torch.strided or leaf.shape[:1] != (num_samples,):
                self._refuse(
                    f"{name} has the shape {list(leaf.shape)} for {num_samples} records, but every "
                    "tensor must be dense with the records along its first axis, each once and in "
                    "the order of the samples"
                )
        now = trees.arrangement(batch)
        if not self.arrangement:
            self.arrangement.update(copy.deepcopy(now))
        if finding := trees.differs(self.arrangement, now):
            self._refuse(finding)
        return leaves

    def _run(self, samples: list[Any]) -> Leaves:
        """Collates copies: a function may change its samples in place."""
        copies = [copy.deepcopy(sample) for sample in samples]
        try:
            batch = self.collate_fn(copies)
        except Exception as error:
            finding = (
                f"it raised {error!r} for {len(copies)} of the records, but not for all together"
            )
            raise NotIsolated(self._message(finding)) from error
        return self.leaves(batch, len(copies))

    # Without random numbers
    def _compare_alone(self, samples: list[Any], leaves: Leaves, number: int) -> bool:
        """Bit for bit; returns whether the record is padded."""
        parts, alone = _parts(leaves, number), self._run([samples[number]])
        finding = difference(parts, alone) or self._impure_padding(parts, alone)
        if finding:
            self._refuse_unrepeatable(leaves, self._run(samples))
            self._refuse(f"{finding[0]} of record {number} of {len(samples)} {finding[1]}")
        return self._is_padded(parts, alone)

    def _impure_padding(self, parts: Leaves, alone: Leaves) -> Finding | None:
        for name, part in parts.items():
            values = behind(part, alone[name])
            if not len(values):
                continue
            known: Tensor = self.padding.setdefault(name, values[:1].clone())
            if not constant(torch.cat([known, values])):
                return name, "is followed by other values than the one constant that pads this leaf"
        return None

    def _is_padded(self, parts: Leaves, alone: Leaves) -> bool:
        longer = padded(parts, alone)
        self.pads |= longer
        return longer

    # With random numbers
    def _compare_draws(self, pool: list[Any], positions: list[int]) -> None:
        """Refuses an entry whose distribution differs from that of the record alone."""
        draws: dict[tuple[int, str], tuple[Draws, Draws]] = {}
        suspect = None
        for number in range(1, DRAWS + 1):
            leaves = self._run(pool)
            for position in positions:
                parts, alone = _parts(leaves, position), self._run([pool[position]])
                if finding := unlike(parts, alone):
                    self._refuse(f"{finding[0]} {finding[1]}")
                self._is_padded(parts, alone)
                for name, part in parts.items():
                    new = Draws(alone[name].shape), Draws(alone[name].shape)
                    in_batch, by_itself = draws.setdefault((position, name), new)
                    in_batch.add(part)
                    by_itself.add(alone[name])
            if number.bit_count() == 1:  # at 1, 2, 4, ..., 64 draws
                suspect = _suspect(draws, number * APART // DRAWS)
                if suspect is None:
                    return
        self._refuse(
            f"{suspect} of a record differs from the same record collated alone, whatever random "
            "numbers are drawn"
        )

    def _replace_others(self, pool: list[Any], position: int, *, rounds: int) -> None:
        """Refuses a record that changes with the others while the random numbers stay the same.

        The record comes first, so that it draws first; next come those that set the lengths.
        """
        record, others = pool[position], pool[:position] + pool[position + 1 :]
        front, rest = self._front(record, others)
        for number in range(rounds):
            other = record if number % 2 == 0 else secrets.choice(others)
            lists = front + rest, front + [other] * len(rest)
            start = saved(self.generators)
            one = self._run(lists[0])
            restore(self.generators, start)
            two = self._run(lists[1])
            name = _changed(one, two, len(front))
            if name and self._draw_alike(*lists):
                self._refuse(f"{name} of a record changes when other records of the batch change")

    def _front(self, record: Any, others: list[Any]) -> tuple[list[Any], list[Any]]:
        """The record and those that are longest in some leaf; then the rest, at least one."""
        sizes = [_sizes(self._run([sample])) for sample in [record, *others]]
        largest = {key: max(size.get(key, 0) for size in sizes) for size in sizes for key in size}
        front, rest, reached = [record], [], sizes[0]
        for other, size in zip(others, sizes[1:], strict=True):
            if any(reached.get(key, 0) < size.get(key, 0) == largest[key] for key in largest):
                front.append(other)
                reached = {key: max(reached.get(key, 0), size.get(key, 0)) for key in largest}
            else:
                rest.append(other)
        return front, rest or [record]

    def _draw_alike(self, one: list[Any], two: list[Any]) -> bool:
        """Whether both lists always draw the same amount of numbers; else they do not compare."""
        for _ in range(CONFIRMATIONS):
            start = saved(self.generators)
            leaves = self._run(one)
            end = saved(self.generators)
            restore(self.generators, start)
            self._refuse_unrepeatable(leaves, self._run(one))
            restore(self.generators, start)
            self._run(two)
            if saved(self.generators) != end:
                return False
        return True

    # Refusals
    def _refuse_unrepeatable(self, one: Leaves, two: Leaves) -> None:
        for name in one:
            if name not in two or not same(one[name], two[name]):
                self._refuse(
                    f"{name} differs between two calls with the same records, so nothing can be "
                    "compared. Draw random numbers from the global generators of torch, numpy or "
                    "random, or from a generator that is an attribute of the collate_fn"
                )

    def _refuse(self, finding: str) -> NoReturn:
        raise NotIsolated(self._message(finding))

    def _message(self, finding: str) -> str:
        name = getattr(self.collate_fn, "__qualname__", type(self.collate_fn).__name__)
        return (
            f"the collate_fn {name} does not keep records apart: {finding}. A record's part of a "
            "batch must not depend on others. Do such work per record, in the data set or inside "
            "the loss function, or with public constants."
        )


def _pool(samples: list[Any], numbers: list[int]) -> tuple[list[Any], list[int]]:
    """Up to `POOL` samples in order, with `numbers` among them, and the positions of those."""
    others = [number for number in range(len(samples)) if number not in numbers]
    secrets.SystemRandom().shuffle(others)
    members = sorted(numbers + others[: POOL - len(numbers)])
    return [samples[number] for number in members], [members.index(number) for number in numbers]


def _parts(leaves: Leaves, number: int) -> Leaves:
    return {name: leaf[number : number + 1] for name, leaf in leaves.items()}


def _suspect(draws: dict[tuple[int, str], tuple[Draws, Draws]], apart: int) -> str | None:
    for (_, name), (in_batch, by_itself) in draws.items():
        if in_batch.distance(by_itself) >= max(apart, 1):
            return name
    return None


def _sizes(leaves: Leaves) -> dict[tuple[str, int], int]:
    return {(name, k): size for name, leaf in leaves.items() for k, size in enumerate(leaf.shape)}


def _changed(one: Leaves, two: Leaves, num_records: int) -> str | None:
    """A leaf whose first records differ; none if shapes differ, for then draws may as well."""
    if _sizes(one) != _sizes(two):
        return None
    rows = slice(num_records)
    return next((name for name in one if not same(one[name][rows], two[name][rows])), None)
