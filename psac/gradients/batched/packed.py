"""Matrix products whose rows lie one record after another, each with as many as it has."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from psac.gradients.batched.owners import Owners
from psac.gradients.contributions.base import (
    Bias,
    Budget,
    Outer,
    cost_of_forming,
    cost_of_gram,
    square_sum,
)
from psac.gradients.contributions.memory import slices
from psac.gradients.contributions.ragged import Ragged
from psac.gradients.contributions.single import Single
from psac.gradients.kernels.loops import Loops, loops
from psac.gradients.precision import wide
from psac.gradients.rules.matrix import rows_by_rows


def product(owners: Owners, inputs_mi: Tensor, grads_mo: Tensor) -> Outer | Ragged | Single:
    """Sums over the rows of each record of x_i g_o, of shape [i, o]."""
    compiled = None if owners.is_even else loops()
    if compiled is None or int(owners.counts.max()) < 2 or not compiled.serves(inputs_mi, grads_mo):
        return rows_by_rows(owners.rows(inputs_mi), owners.rows(grads_mo), owners.num_records)
    return Packed(owners, inputs_mi, grads_mo, compiled)


class Packed(Ragged):
    """gradient[n] = sum over the rows of n of inputs[m, :] x grads[m, :]."""

    def __init__(
        self, owners: Owners, inputs_mi: Tensor, grads_mo: Tensor, compiled: Loops
    ) -> None:
        self.owners, self.compiled, self.num_samples = owners, compiled, owners.num_records
        self.inputs, self.grads = owners.sorted(inputs_mi), owners.sorted(grads_mo)
        self.shape = (inputs_mi.shape[1], grads_mo.shape[1])
        self.counts, self.inputs_are_left = owners.counts, True
        self.starts = torch.cat([self.counts.new_zeros(1), self.counts.cumsum(0)])
        self.gathered, self.method = True, "not measured"
        self.bias: Bias | None = None

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.grads.nbytes

    def as_outer(self) -> Outer:
        inputs, grads = (self.owners.padded(t).unsqueeze(1) for t in (self.inputs, self.grads))
        outer = Outer(inputs, grads, (inputs.shape[-1], grads.shape[-1]), True)
        return outer if self.inputs_are_left else outer.transposed()

    def with_bias(self) -> Bias:
        self.bias = Bias(self.num_samples, lambda: self._sums(self.grads))
        return self.bias

    def transposed(self) -> Packed:
        turned = copy.copy(self)
        turned.inputs_are_left, turned.shape = not self.inputs_are_left, self.shape[::-1]
        return turned

    def norms_squared(self, budget: Budget) -> Tensor:
        typical = round(float(self.counts.double().square().mean().sqrt()))
        sizes = typical, self.inputs.shape[-1], self.grads.shape[-1]
        if cost_of_forming(*sizes) < cost_of_gram(*sizes, compiled=True):
            self.method = "formed in slices"
            budget.doubt(self.mass())
            parts = slices(self.num_samples, 4 * self.shape[0] * self.shape[1])
            return torch.cat([square_sum(self.dense(s)) for s in parts])
        self.method = "gram of packed rows"
        sums = squares = None
        if self.bias is not None:
            sums = self.bias.values = self.grads.new_empty(self.num_samples, sizes[2])
            squares = self.bias.squares = self.grads.new_empty(self.num_samples)
        sums = self.compiled.gram(
            self.inputs.unsqueeze(0), self.grads.unsqueeze(0), None, False, sums, squares,
            self.starts,
        )  # fmt: skip
        return Outer.guarded(sums, lambda samples: square_sum(self.dense(samples)), budget)

    def mass(self) -> Tensor:
        return self._sums(square_sum(self.inputs) * square_sum(self.grads))

    def _sums(self, values_m: Tensor) -> Tensor:
        """Over the rows of each record."""
        owners = torch.arange(self.num_samples, device=values_m.device)
        owners = owners.repeat_interleave(self.counts)
        total = wide(values_m).new_zeros(self.num_samples, *values_m.shape[1:])
        return total.index_add_(0, owners, wide(values_m))
