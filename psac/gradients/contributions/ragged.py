"""Matrix products of which some rows add nothing: padding.

A row whose output gradient is zero adds nothing to any sum, so leaving it out is exact. Samples
then have different numbers of rows, which lie one after another; the compiled loops know where
each begins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from psac.gradients.contributions.base import (
    Bias,
    Budget,
    Dense,
    Outer,
    cost_of_forming,
    cost_of_gram,
    square_sum,
)
from psac.gradients.contributions.memory import TEMPORARY_BYTES
from psac.gradients.contributions.weights import Weights
from psac.gradients.kernels.loops import Loops, loops

WORTHWHILE = 0.75  # rows that are left, of all, from which on leaving out costs more than it saves


def without_zero_rows(outer: Outer) -> Outer | Ragged:
    """The same, without rows whose output gradient is zero, where that is worth it."""
    compiled = loops()
    n, h, p, _ = outer.left.shape
    if compiled is None or h != 1 or p < 8 or not compiled.serves(outer.left, outer.right):
        return outer
    grads = outer.sides()[1].squeeze(1)
    if compiled.some_alive(grads) > WORTHWHILE:  # not worth a look at all of them
        return outer
    alive = compiled.alive(grads)
    counts = alive.sum(1)
    if int(counts.sum()) > WORTHWHILE * n * p:
        return outer
    return Ragged(outer, compiled, alive, counts)


class Ragged:
    """An `Outer` of which `counts[n]` positions of sample n are alive.

    It holds all of them until norms are taken, then those alone: [m, features], one sample after
    another.
    """

    def __init__(self, outer: Outer, compiled: Loops, alive_np: Tensor, counts: Tensor):
        self.outer, self.compiled = outer, compiled
        self.alive, self.counts = alive_np, counts
        self.starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self.num_samples, self.shape = outer.num_samples, outer.shape
        self.inputs_are_left = outer.inputs_are_left
        self.inputs = self.grads = outer.left.new_empty(0)
        self.gathered, self.method = False, outer.method

    @property
    def nbytes(self) -> int:
        return self.outer.nbytes

    def as_outer(self) -> Outer:
        """The same, with all positions."""
        return self.outer

    def with_bias(self) -> Bias:
        return self.outer.with_bias()

    def transposed(self) -> Ragged:
        """The same contribution to the transposed matrix."""
        return Ragged(self.outer.transposed(), self.compiled, self.alive, self.counts)

    def norms_squared(self, budget: Budget) -> Tensor:
        inputs, grads = (side.squeeze(1) for side in self.outer.sides())
        typical = round(float(self.counts.double().square().mean().sqrt()))
        sizes = typical, inputs.shape[-1], grads.shape[-1]
        if cost_of_forming(*sizes) < cost_of_gram(*sizes, compiled=True):
            norms = self.outer.norms_squared(budget)
            self.method = self.outer.method
            return norms
        self.method = "gram without zero rows"
        gather, pattern = self.compiled.gather, self.alive.numpy().tobytes()
        self.inputs, _ = budget.once(
            "gathered", inputs, lambda: gather(inputs, self.alive, self.starts), pattern
        )
        self.grads, self.gathered = gather(grads, self.alive, self.starts), True
        n, numbers = self.num_samples, self.compiled.gram_numbers(int(self.counts.max()))
        known, filled = None, False
        if 4 * n * numbers <= TEMPORARY_BYTES:
            known, filled = budget.once("gram", self.inputs, lambda: inputs.new_empty(n, numbers))
        sums = squares = None
        if self.outer.bias is not None:
            sums = self.outer.bias.values = grads.new_empty(n, grads.shape[-1])
            squares = self.outer.bias.squares = grads.new_empty(n)
        sums = self.compiled.gram(
            self.inputs.unsqueeze(0), self.grads.unsqueeze(0), known, filled, sums, squares,
            self.starts,
        )  # fmt: skip
        del self.outer
        return Outer.guarded(sums, lambda samples: square_sum(self.dense(samples)), budget)

    def _sides(self) -> tuple[Tensor, Tensor]:
        """Left and right."""
        return (self.inputs, self.grads) if self.inputs_are_left else (self.grads, self.inputs)

    def weighted_sum(self, weights: Weights) -> Tensor:
        if not self.gathered:
            return self.outer.weighted_sum(weights)
        by_row = weights.like(self.grads).repeat_interleave(self.counts)
        return weights.product(*self._sides(), by_row).view(self.shape)

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        if not self.gathered:
            return self.outer.dense(samples)
        left, right = self._sides()
        chosen = torch.arange(self.num_samples)[samples].tolist()
        formed = [
            left[start:end].t() @ right[start:end]
            for start, end in zip(self.starts[chosen], self.starts[1:][chosen], strict=True)
        ]
        return torch.stack(formed).view(len(chosen), *self.shape)

    def mass(self) -> Tensor:
        return Dense(self.dense()).mass() if self.gathered else self.outer.mass()

    def zero_samples(self, samples: Tensor) -> None:
        if not self.gathered:
            self.outer.zero_samples(samples)
            return
        rows = samples.repeat_interleave(self.counts)
        self.inputs, self.grads = self.inputs.clone(), self.grads.clone()
        self.inputs[rows] = 0
        self.grads[rows] = 0
