"""Several contributions to the same tensor, as one: the norm of a sum is not the sum of norms.

A tied embedding and head, a cell that runs T times, two forwards in one backward, a penalty of
weights in the loss.  Uses of the same kind are laid side by side along positions; others add their
cross terms, or are formed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from psac.gradients.contributions.base import (
    Budget,
    Contribution,
    Dense,
    Outer,
    gram_sum,
    rows,
    square_sum,
)
from psac.gradients.contributions.lookup import Lookup
from psac.gradients.contributions.memory import slices
from psac.gradients.contributions.ragged import Ragged
from psac.gradients.contributions.shared import Scaled, Spread, inner
from psac.gradients.contributions.single import Single
from psac.gradients.contributions.weights import Weights
from psac.gradients.precision import wide


class Sum:
    """Several contributions to the same tensor that cannot be laid side by side."""

    def __init__(self, parts: Sequence[Contribution]):
        self.parts = list(parts)
        self.num_samples = parts[0].num_samples
        self.method = "not measured"

    def norms_squared(self, budget: Budget) -> Tensor:
        pairs = [(a, b) for k, a in enumerate(self.parts) for b in self.parts[k + 1 :]]
        if all(has_cross_term(a, b) for a, b in pairs):
            crossed = [cross(a, b) for a, b in pairs]
            budget.doubt(self.mass())
            alone = torch.stack([part.norms_squared(budget) for part in self.parts]).sum(0)
            self.method = " + ".join(part.method for part in self.parts) + " + cross term"
            squares = alone + 2 * torch.stack([value for value, _ in crossed]).sum(0)
            mass = alone + 2 * torch.stack([size for _, size in crossed]).sum(0)
            return Outer.guarded(gram_sum([squares], [mass]), self._squares_of, budget)
        self.method = "summed"
        budget.doubt(self.mass())
        first = self.parts[0].dense(slice(0, 1))
        formed = [square_sum(self.dense(s)) for s in slices(self.num_samples, 2 * first.nbytes)]
        return torch.cat(formed)

    def mass(self) -> Tensor:
        return torch.stack([part.mass() for part in self.parts]).sum(0)

    def _squares_of(self, samples: Tensor) -> Tensor:
        """One by one: a table may be large."""
        return torch.cat([square_sum(self.dense(sample)) for sample in samples.split(1)])

    def weighted_sum(self, weights: Weights) -> Tensor:
        total = self.parts[0].weighted_sum(weights)
        for part in self.parts[1:]:
            if isinstance(part, Spread):
                total = torch.addcmul(total, part.factor(weights), part.shared)
            else:
                total = total + part.weighted_sum(weights)
        return total

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        total = self.parts[0].dense(samples)
        for part in self.parts[1:]:
            total = total + part.dense(samples)
        return total

    def zero_samples(self, samples: Tensor) -> None:
        for part in self.parts:
            part.zero_samples(samples)


def joined(parts: Sequence[Contribution]) -> Contribution:
    """One contribution for several to the same tensor."""
    if len(parts) == 1:
        return parts[0]
    alike: dict[object, list[Contribution]] = defaultdict(list)
    for part in parts:
        for one in part.parts if isinstance(part, Sum) else (part,):
            alike[kind(one)].append(one)
    merged = [one for group in alike.values() for one in side_by_side(group)]
    merged.sort(key=lambda part: isinstance(part, Spread))
    return merged[0] if len(merged) == 1 else Sum(merged)


def kind(part: Contribution) -> object:
    """Of contributions that can be laid side by side."""
    if isinstance(part, (Outer, Ragged, Single)):
        return Outer, part.left.shape[1] if isinstance(part, Outer) else 1
    return type(part)


def side_by_side(parts: Sequence[Contribution]) -> Sequence[Contribution]:
    if len(parts) == 1:
        return parts
    first = parts[0]
    if all(isinstance(part, Dense) for part in parts):
        return [Dense(torch.stack([part.values for part in parts]).sum(0))]  # type: ignore[attr-defined]
    if isinstance(first, (Outer, Ragged, Single)):
        outers = [as_outer(part) for part in parts]
        left = torch.cat([wide(part.left) for part in outers], dim=2)
        right = torch.cat([wide(part.right) for part in outers], dim=2)
        return [Outer(left, right, outers[0].shape)]
    if all(isinstance(part, Lookup) for part in parts):
        index = torch.cat([part.index for part in parts], dim=1)  # type: ignore[attr-defined]
        values = torch.cat([part.rows for part in parts], dim=1)  # type: ignore[attr-defined]
        return [Lookup(index, values, first.num_rows)]  # type: ignore[attr-defined]
    if isinstance(first, Scaled):
        return added_factors([part for part in parts if isinstance(part, Scaled)])
    return parts


def added_factors(parts: Sequence[Scaled]) -> Sequence[Contribution]:
    """Of the same product, factors add up."""
    known: dict[tuple[int, int], Scaled] = {}
    for part in parts:
        key = id(part.part.left), id(part.part.right)
        before = known.get(key)
        known[key] = Scaled(part.part, before.factor + part.factor) if before else part
    return list(known.values())


def as_outer(part: Contribution) -> Outer:
    return part.as_outer() if isinstance(part, (Ragged, Single)) else part  # type: ignore[return-value]


def has_cross_term(first: Contribution, second: Contribution) -> bool:
    """Cheaper than forming both."""
    known = (Outer, Ragged, Single, Lookup)
    if isinstance(first, Spread) or isinstance(second, Spread):
        known = (*known, Spread, Scaled, Dense)
    return isinstance(first, known) and isinstance(second, known)


def cross(first: Contribution, second: Contribution) -> tuple[Tensor, Tensor]:
    """[n]: the inner product of each sample's gradients of the same tensor.

    And what it would be without cancellation.
    """
    if isinstance(second, Spread):
        first, second = second, first
    if isinstance(first, Spread):
        products_with_shared = inner(second, first.shared, first.coefficients.shape[1:])
        products = rows(products_with_shared * first.coefficients)
        return products.sum(1), products.abs().sum(1)
    if isinstance(first, Lookup):
        first, second = second, first
    first = as_outer(first)
    n, _, p, _ = first.left.shape
    if not isinstance(second, Lookup):
        second = as_outer(second)
        left = torch.matmul(wide(first.left), wide(second.left).transpose(-2, -1))
        right = torch.matmul(wide(first.right), wide(second.right).transpose(-2, -1))
        products = (left * right).flatten(1)
        return products.sum(1), products.abs().sum(1)
    parts, values = [], second.values
    for s in slices(n, 12 * p * second.index.shape[1]):
        index = second.index[s].clamp(min=0)
        chosen = torch.gather(wide(first.left[s, 0]), 2, index.unsqueeze(1).expand(-1, p, -1))
        products = torch.bmm(wide(first.right[s, 0]), values[s].transpose(1, 2))
        products = (chosen * products).flatten(1)
        parts.append((products.sum(1), products.abs_().sum(1)))
    values_of, sizes = zip(*parts, strict=True)
    return torch.cat(values_of), torch.cat(sizes)
