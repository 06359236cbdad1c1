"""Rows of a table that samples look up: embeddings.

The gradient of a table has as many rows as the sample has distinct tokens; it is never formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from psac.gradients.contributions.base import Budget, square_sum
from psac.gradients.contributions.weights import Weights
from psac.gradients.kernels.loops import Loops, loops
from psac.gradients.precision import wide


class Lookup:
    """gradient[n, index[n, p], :] += rows[n, p, :], of shape [num_rows, r].

    An index of -1 adds nothing.
    """

    method = "unique rows"

    def __init__(self, index_np: Tensor, rows_npr: Tensor, num_rows: int):
        self.index, self.rows, self.num_rows = index_np, wide(rows_npr), num_rows
        self.num_samples = len(rows_npr)

    @property
    def values(self) -> Tensor:
        """The rows, zero where the index is -1."""
        nowhere = self.index < 0
        return self.rows.masked_fill(nowhere.unsqueeze(-1), 0) if bool(nowhere.any()) else self.rows

    def _compiled(self) -> Loops | None:
        compiled = loops() if self.num_rows < 2**31 else None
        return compiled if compiled and compiled.serves(self.rows) else None

    def norms_squared(self, budget: Budget) -> Tensor:
        compiled = self._compiled()
        if compiled is not None:
            norms, mass = compiled.lookup(self.index, self.rows)
            budget.doubt(mass)
            return norms
        (n, p, r), values = self.rows.shape, self.values
        if p == 1:
            return square_sum(values)
        keys = self.index.clamp(min=0) + self.num_rows * torch.arange(
            n, device=self.index.device
        ).view(n, 1)
        numbers, place = torch.unique(keys.flatten(), return_inverse=True)
        if len(numbers) == n * p:  # no row twice, as in a table of positions
            return square_sum(values)
        rows = values.new_zeros(len(numbers), r).index_add_(0, place, values.reshape(n * p, r))
        owner = torch.div(numbers, self.num_rows, rounding_mode="floor")
        budget.doubt(self.mass())
        return values.new_zeros(n).index_add_(0, owner, square_sum(rows))

    def weighted_sum(self, weights: Weights) -> Tensor:
        compiled, of_samples = self._compiled(), weights.like(self.rows)
        if compiled is not None:
            return compiled.lookup_sum(self.index, self.rows, of_samples, self.num_rows)
        values = self.values * of_samples.view(-1, 1, 1)
        total = values.new_zeros(self.num_rows, values.shape[-1])
        return total.index_add_(0, self.index.clamp(min=0).flatten(), values.flatten(0, 1))

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        index, values = self.index[samples].clamp(min=0), self.values[samples]
        formed = values.new_zeros(values.shape[0], self.num_rows, values.shape[-1])
        return formed.scatter_add_(1, index.unsqueeze(-1).expand_as(values), values)

    def mass(self) -> Tensor:
        return square_sum(self.values)

    def zero_samples(self, samples: Tensor) -> None:
        self.index = self.index.clone()
        self.index[samples] = -1
