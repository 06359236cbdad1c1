"""Contributions that multiply what is each record's own with a tensor that all records share.

    Spread   coefficients of each record times one shared tensor: a penalty of weights in the loss,
             the part of a weight norm's gradient that lies along the weight
    Scaled   an outer product, times a shared factor for each entry: a quantised or masked weight

Neither forms a record's gradient.  `inner` is what their cross terms are made of.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from psac.gradients.contributions.base import Budget, Contribution, Dense, Outer, square_sum
from psac.gradients.contributions.lookup import Lookup
from psac.gradients.contributions.memory import slices
from psac.gradients.contributions.single import Single
from psac.gradients.contributions.weights import Weights
from psac.gradients.precision import wide

if TYPE_CHECKING:
    from collections.abc import Sequence


class Unstructured(Exception):
    """Internal: an operation that gradients have to be formed for."""


# Squares of entries that a factor leaves of a record, of what they would be without: below, what
# underflows in float32 may count.
TINY = 1e-20
SHORT = 1e-12


class Spread:
    """gradient[n] = coefficients[n] * shared, broadcast to the shape of `shared`."""

    method = "shared gradient"

    def __init__(self, coefficients: Tensor, shared: Tensor):
        self.coefficients, self.shared = coefficients, shared
        self.num_samples = len(coefficients)

    @property
    def nbytes(self) -> int:
        return self.coefficients.nbytes

    def norms_squared(self, budget: Budget) -> Tensor:
        return square_sum(self.coefficients * self._lengths())

    def _lengths(self) -> Tensor:
        """Of what each coefficient is multiplied with."""
        sizes = zip(self.coefficients.shape[1:], self.shared.shape, strict=True)
        axes = [k for k, (few, many) in enumerate(sizes) if few != many]
        if not axes:
            return self.shared.abs()
        lengths = torch.linalg.vector_norm(self.shared, dim=axes, keepdim=True)
        if bool((lengths < SHORT).any()):  # squares may have been lost
            lengths = torch.linalg.vector_norm(self.shared.double(), dim=axes, keepdim=True)
        return lengths.to(self.shared.dtype)

    def weighted_sum(self, weights: Weights) -> Tensor:
        return self.factor(weights) * self.shared

    def factor(self, weights: Weights) -> Tensor:
        """What the shared tensor is multiplied with in a weighted sum."""
        return Dense(self.coefficients).weighted_sum(weights)

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        return self.coefficients[samples] * self.shared

    def mass(self) -> Tensor:
        """One term cannot cancel."""
        return self.norms_squared(Budget(0))

    def zero_samples(self, samples: Tensor) -> None:
        self.coefficients = self.coefficients.clone()
        self.coefficients[samples] = 0


class Scaled:
    """gradient[n] = factor * (sum over p of left[n, p, :] x right[n, p, :])."""

    def __init__(self, part: Outer | Single, factor_lr: Tensor):
        self.part, self.factor = part, factor_lr
        self.num_samples, self.method = part.num_samples, "product of squares"

    @property
    def nbytes(self) -> int:
        return self.part.nbytes

    def norms_squared(self, budget: Budget) -> Tensor:
        if isinstance(self.part, Single):
            return self._of_one_position(self.part)
        self.method = "formed in slices"
        budget.doubt(self.mass())
        parts = slices(self.num_samples, 8 * self.factor.numel())
        return torch.cat([square_sum(self.dense(s)) for s in parts])

    def _of_one_position(self, part: Single) -> Tensor:
        """sum of left^2 factor^2 right^2, where nothing cancels."""
        (left, right), factor = sides(part), self.factor.square()
        norms, most = products_of_squares(left, factor, right), factor.amax()
        lost = ~(norms >= TINY * most * part.norms_squared(Budget(0)))  # also what is not finite
        if bool(lost.any()):
            double = left[lost].double(), self.factor.double().square(), right[lost].double()
            norms[lost] = products_of_squares(*double).to(norms.dtype)
        return norms

    def weighted_sum(self, weights: Weights) -> Tensor:
        return self.part.weighted_sum(weights) * self.factor

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        return self.part.dense(samples) * self.factor

    def mass(self) -> Tensor:
        """Of terms, position by position."""
        n, (left, right) = self.num_samples, sides(self.part)
        terms = products_of_squares(left, self.factor.square(), right)
        return terms.view(n, -1).sum(1)

    def zero_samples(self, samples: Tensor) -> None:
        self.part.zero_samples(samples)


def products_of_squares(left_ml: Tensor, factor_lr: Tensor, right_mr: Tensor) -> Tensor:
    return torch.linalg.vecdot(left_ml.square() @ factor_lr, right_mr.square())


def sides(part: Outer | Single) -> tuple[Tensor, Tensor]:
    """All rows of both factors: [m, l] and [m, r]."""
    if isinstance(part, Single):
        return wide(part.left), wide(part.right)
    return wide(part.left).flatten(0, 2), wide(part.right).flatten(0, 2)


def reduced(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Summed over the axes along which the shape is one (or that it lacks)."""
    return values.sum_to_size(tuple(shape)) if tuple(values.shape) != tuple(shape) else values


def inner(part: Contribution, shared: Tensor, shape: Sequence[int]) -> Tensor:
    """[n, shape]: each sample's gradient times a shared tensor, summed to a smaller shape."""
    n, shape = part.num_samples, tuple(shape)
    if isinstance(part, Spread):
        values = part.coefficients * reduced_for(shared * part.shared, part.coefficients, shape)
        return values.sum_to_size(n, *shape)
    if isinstance(part, Scaled):
        return inner(part.part, part.factor * shared, shape)
    if isinstance(part, (Single, Outer)) and len(part.shape) == 2 and shared.dim() == 2:
        return inner_of_product(part, shared.expand(part.shape), shape)
    if isinstance(part, Lookup) and math.prod(shape) == 1:
        rows = (
            part.rows * shared.expand(part.num_rows, part.rows.shape[-1])[part.index.clamp(min=0)]
        )
        return rows.masked_fill((part.index < 0).unsqueeze(-1), 0).sum((1, 2)).view(n, *shape)
    formed = []
    for s in slices(n, 8 * shared.numel()):
        values = part.dense(s)
        formed.append((values * shared).sum_to_size(len(values), *shape))
    return torch.cat(formed)


def reduced_for(values: Tensor, coefficients: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Summed over axes along which neither differs."""
    return reduced(values, torch.broadcast_shapes(coefficients.shape[1:], shape))


def inner_of_product(part: Single | Outer, shared_lr: Tensor, shape: tuple[int, ...]) -> Tensor:
    n, (left, right) = part.num_samples, sides(part)
    l, r = shared_lr.shape
    if shape == (l, 1):
        values = left * (right @ shared_lr.t())
    elif shape == (1, r):
        values = right * (left @ shared_lr)
    elif math.prod(shape) == 1:
        values = torch.linalg.vecdot(left @ shared_lr, right).unsqueeze(1)
    else:
        raise Unstructured
    return values.view(n, -1, values.shape[-1]).sum(1).view(n, *shape)
