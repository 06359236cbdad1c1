"""A batch whose records take different paths through the code, evaluated path by path.

    if words.eq(PAD).any(): ...        # a branch on a record's values
    loss = losses[mask].mean()         # a shape that follows from a record's values

Records that take the same path are evaluated together, by vmap.  A record's loss and gradient are
what its own code gives; which records took the same path changes nothing for it.

What values have decided may be remembered in plain Python, which vmap does not see.  So each path
starts from the same state of model and function and must leave the same one, as records do that are
computed one at a time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from psac.gradients import trees
from psac.gradients.errors import place_of
from psac.gradients.groups import TOGETHER, Groups
from psac.gradients.isolation.again import Result, refuse_order, refuse_other_result
from psac.gradients.isolation.generators import (
    Generators,
    own_generators,
    seed_numbers,
    seed_torch,
)
from psac.gradients.rules.values import Differ

if TYPE_CHECKING:
    from psac.gradients.measured import Measured
    from psac.gradients.vectorized.evaluate import Evaluation


class Path:
    """The records of one path, by number, and their evaluation."""

    def __init__(self, numbers: Tensor, evaluation: Evaluation, place: str, draws: int) -> None:
        """`place` is the line where it parted from others, `draws` seeds its random numbers."""
        self.numbers, self.evaluation, self.place = numbers, evaluation, place
        self.draws = draws


class Draws:
    """The random numbers of paths, whose number must not show in those of later steps.

    What numpy and Python draw is the same for all paths, as it is for all records of one path;
    torch's numbers are each path's own, or with `same` those that the generator gives now.
    """

    def __init__(self, same: bool) -> None:
        self._now = Generators() if same else None
        self._seed = 0 if same else int(torch.randint(2**62, ()))

    def surrounding(self) -> contextlib.AbstractContextManager[None]:
        return own_generators(self._seed) if self._now is None else contextlib.nullcontext()

    def begin(self, number: int) -> None:
        if self._now is not None:
            self._now.restore()
            return
        seed_torch(self._seed + number)
        seed_numbers(self._seed)


def followed(batch: Any, evaluate: Callable[[Any], Evaluation], draws: Draws) -> list[Path]:
    """`evaluate` raises `Differ` for records that do not take the same path.

    Most records come first: what a single one would leave to them shows in `refuse_other_order`.
    """
    n, found = trees.num_records(batch), []
    left, place = [torch.arange(n)], ""
    for number in itertools.count():
        if not left:
            break
        numbers = left.pop()
        some = batch if len(numbers) == n else trees.records(batch, numbers)
        draws.begin(number)
        try:
            found.append(Path(numbers, evaluate(some), place, number))
        except Differ as differ:
            place = place_of(differ.__traceback__)
            left += [numbers[differ.labels == k] for k in range(int(differ.labels.max()) + 1)]
            left.sort(key=len)
    return found


def refuse_other_order(
    paths: Sequence[Path], batch: Any, evaluate: Callable[[Any], Evaluation], draws: Draws
) -> None:
    """Computes the paths again, the last one first, by the same random numbers."""
    for path in reversed(paths):
        draws.begin(path.draws)
        which = "the records of one path"
        try:
            again = evaluate(trees.records(batch, path.numbers))
        except Differ:
            refuse_order(which)
        refuse_other_result(which, result_of(path.evaluation), result_of(again))


def result_of(evaluation: Evaluation) -> Result:
    (squares,) = evaluation.measured.norms_squared(TOGETHER)
    return evaluation.losses, {} if squares is None else {"norms": squares.sqrt()}


class MeasuredPaths:
    """The interface of `Measured`, for all records of all paths."""

    def __init__(self, paths: Sequence[Path], num_samples: int) -> None:
        self.num_samples = num_samples
        self.parts: list[tuple[Tensor, Measured | MeasuredPaths]] = [
            (path.numbers, path.evaluation.measured) for path in paths
        ]
        self.methods: dict[str, str] = {}
        for _, measured in self.parts:
            self.methods |= measured.methods
        self.activation_bytes = max(measured.activation_bytes for _, measured in self.parts)

    def whole(self, values: Sequence[Tensor | None]) -> Tensor | None:
        """One number for each record; zeros where a path has none."""
        like = next((v for v in values if v is not None), None)
        if like is None:
            return None
        kind = max((v.dtype for v in values if v is not None), key=lambda dtype: dtype.itemsize)
        found = like.new_zeros(self.num_samples, dtype=kind)
        for (numbers, _), value in zip(self.parts, values, strict=True):
            if value is not None:
                found[numbers.to(found.device)] = value.to(kind)
        return found

    def norms_squared(self, groups: Groups) -> list[Tensor | None]:
        parts = [measured.norms_squared(groups) for _, measured in self.parts]
        return [self.whole(values) for values in zip(*parts, strict=True)]

    def floor(self) -> Tensor | None:
        return self.whole([measured.floor() for _, measured in self.parts])

    def zero_samples(self, samples: Tensor) -> None:
        for numbers, measured in self.parts:
            measured.zero_samples(samples[numbers.to(samples.device)])

    def weighted_sums(self, weights: Sequence[Tensor], groups: Groups) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        while self.parts:
            numbers, measured = self.parts.pop(0)
            some = [values[numbers.to(values.device)] for values in weights]
            for name, value in measured.weighted_sums(some, groups).items():
                sums[name] = sums[name] + value if name in sums else value
        return sums
