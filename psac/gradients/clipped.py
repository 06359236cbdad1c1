"""Sums of clipped per-sample gradients: norms -> weights -> weighted sum.

    total = ClippedSum(Evaluator(model), psac.PSAC())
    total.add(loss, batch)               # as often as there are physical batches
    sums = total.collect()               # name -> sum over records of weight * gradient

Guarantee: adding or removing one record moves the sums by at most the bound of the rule (with
several groups: the sums of each group by that group's bound), whatever rule and records.  A record
whose gradient is not finite when it is computed alone adds zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from psac.clipping.rules import ClippingRule, safe_weights
from psac.gradients import trees
from psac.gradients.errors import PrivacyError
from psac.gradients.evaluator import Evaluator
from psac.gradients.groups import TOGETHER, Groups
from psac.gradients.precision import summed_in
from psac.gradients.trees import LossFunction
from psac.gradients.vectorized.evaluate import Evaluation


@dataclass(frozen=True, kw_only=True)
class Sensitive:
    """What the owner of the data may look at.  NOT private: exact numbers about single records.

    Its text shows none of them, nor how many there are, as it may end up in a log.
    """

    losses: Tensor  # [n]
    norms: Tensor  # [n], or [groups, n]
    weights: Tensor
    way: str  # how the function was evaluated: "vmap", "alone" or "batched"

    def __repr__(self) -> str:
        return f"<Sensitive: losses, norms and weights of single records, way {self.way!r}>"


@dataclass(frozen=True)
class _Part:
    """Some records of a batch, evaluated and weighed; one tensor of norms for each group."""

    numbers: Tensor
    evaluation: Evaluation
    norms: list[Tensor]
    weights: list[Tensor]


class ClippedSum:
    """Accumulates the weighted sums of batch after batch, until they are collected."""

    def __init__(
        self, evaluator: Evaluator, clipping: ClippingRule | Mapping[str, ClippingRule]
    ) -> None:
        self.evaluator, self.clipping = evaluator, clipping
        self.groups = TOGETHER
        if isinstance(clipping, Mapping):
            self.groups = Groups.by_pattern(clipping, evaluator.parameters)
        self.bounds = [rule.bound for rule in self.rules]  # of all that is accumulated
        self._sums: dict[str, Tensor] = {}

    @property
    def rules(self) -> list[ClippingRule]:
        """One for each group."""
        if isinstance(self.clipping, Mapping):
            return list(self.clipping.values())
        return [self.clipping]

    def add(self, loss: LossFunction, batch: Any, *, batched: bool = False) -> Sensitive:
        """One more batch of records."""
        bounds = [rule.bound for rule in self.rules]
        if bounds != self.bounds:
            raise PrivacyError(
                f"the clipping rules had the bounds {self.bounds} when the run was made, and have "
                f"{bounds} now: the noise would not fit the sum. Other bounds need a new run."
            )
        batch = trees.of_plain_tensors(batch)
        evaluation = self.evaluator(loss, batch, batched=batched)
        parts = self._weighed(evaluation, loss, batch)
        # From here on no code of the user's runs: a batch is added whole or not at all.
        for part in parts:
            self._accumulate(part)
        return merged(parts, evaluation.way)

    def _weighed(self, evaluation: Evaluation, loss: LossFunction, batch: Any) -> list[_Part]:
        measured, n = evaluation.measured, len(evaluation.losses)
        squared = measured.norms_squared(self.groups)
        like = next((s for s in squared if s is not None), evaluation.losses)
        norms = [like.new_zeros(n) if s is None else s.sqrt() for s in squared]
        floor = measured.floor()
        weighed = norms if floor is None else [x.maximum(floor) for x in norms]
        if not math.isfinite(float(sum(map(torch.sum, weighed)))):
            finite = torch.stack(weighed).isfinite().all(0)
            if evaluation.way != "alone":
                return self._apart(finite, loss, batch, evaluation.way == "batched")
            measured.zero_samples(~finite)
            weighed = [torch.where(finite, x, math.inf) for x in weighed]  # dropped from all groups
        weights = [safe_weights(rule, x) for rule, x in zip(self.rules, weighed, strict=True)]
        return [_Part(torch.arange(n), evaluation, norms, weights)]

    def _apart(self, finite: Tensor, loss: LossFunction, batch: Any, batched: bool) -> list[_Part]:
        """Where the norms of some records are not finite, those are computed alone.

        A value that is not finite may have spoiled others in an operation on the whole batch.
        """
        parts: list[_Part] = []
        for chosen, evaluate in (
            (finite, functools.partial(self.evaluator, batched=batched)),
            (~finite, self.evaluator.one_by_one.evaluate),
        ):
            numbers = chosen.nonzero().flatten()
            if len(numbers):
                some = trees.records(batch, numbers)
                for part in self._weighed(evaluate(loss, some), loss, some):
                    parts.append(replace(part, numbers=numbers[part.numbers.to(numbers.device)]))
        return parts

    def _accumulate(self, part: _Part) -> None:
        for name, value in part.evaluation.measured.weighted_sums(
            part.weights, self.groups
        ).items():
            known = self._sums.get(name)
            if known is not None:
                known.add_(value)
            else:
                dtype = summed_in(self.evaluator.parameters[name].dtype)
                self._sums[name] = value if value.dtype is dtype else value.to(dtype)

    def unreached(self) -> list[str]:
        """Parameters on which no loss since the last collect depends."""
        return [name for name in self.evaluator.parameters if name not in self._sums]

    def collect(self) -> dict[str, Tensor]:
        """The sums since the last collect, by parameter name, zeros included; it starts anew.

        Of float32 at least, whatever the parameter's dtype (precision.py).
        """
        sums = {
            name: self._sums[name]
            if name in self._sums
            else torch.zeros_like(p, dtype=summed_in(p.dtype))
            for name, p in self.evaluator.parameters.items()
        }
        self.discard()
        return sums

    def discard(self) -> None:
        """Forgets what was accumulated."""
        self._sums = {}


def merged(parts: list[_Part], way: str) -> Sensitive:
    """In the order of the batch."""
    order = torch.cat([part.numbers for part in parts]).argsort() if len(parts) > 1 else None

    def whole(tensors: list[Tensor]) -> Tensor:
        if order is None:
            return tensors[0]
        kind = functools.reduce(torch.promote_types, [t.dtype for t in tensors])
        return torch.cat([t.to(kind) for t in tensors])[order.to(tensors[0].device)]

    def by_group(name: str) -> Tensor:
        groups = zip(*(getattr(part, name) for part in parts), strict=True)
        of_groups = [whole(list(group)) for group in groups]
        return of_groups[0] if len(of_groups) == 1 else torch.stack(of_groups)

    return Sensitive(
        losses=whole([part.evaluation.losses for part in parts]),
        norms=by_group("norms"),
        weights=by_group("weights"),
        way=way,
    )
