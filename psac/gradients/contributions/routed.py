"""Rows of which each is multiplied with one of several matrices, chosen by the record: experts.

gradient[n, e] = sum over the rows of record n that expert e was given of left x right.  The rows of
a record lie together, sorted by expert, so that a record and an expert are like one sample of a
ragged matrix product, and nothing is formed for experts that a record does not use.

Letters: n record, e expert, m row of a record, l left features, r right features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from psac.gradients.contributions.base import Budget, Outer, square_sum
from psac.gradients.contributions.weights import Weights
from psac.gradients.kernels.loops import loops
from psac.gradients.precision import wide


class Routed:
    """gradient[n], of shape [e, l, r]."""

    def __init__(self, left_nml: Tensor, right_nmr: Tensor, ends_ne: Tensor):
        """`ends` is where the rows of an expert end; rows behind the last one add nothing."""
        (self.num_samples, rows, _), self.ends = left_nml.shape, ends_ne
        self.left, self.right = (wide(t).flatten(0, 1) for t in (left_nml, right_nmr))
        first = rows * torch.arange(self.num_samples, device=ends_ne.device).unsqueeze(1)
        self.starts = torch.cat([ends_ne.new_zeros(self.num_samples, 1), ends_ne], 1) + first
        self.method = "not measured"

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    def norms_squared(self, budget: Budget) -> Tensor:
        compiled, n = loops(), self.num_samples
        if compiled is None or not compiled.serves(self.left, self.right):
            self.method = "formed one by one"
            return torch.cat([square_sum(self.dense(slice(k, k + 1))) for k in range(n)])
        self.method = "gram of routed rows"
        # what lies between the last expert of a record and the first of the next is one more
        starts = torch.cat([self.starts.flatten(), self.starts.new_tensor([len(self.left)])])
        left, right = self.left.unsqueeze(0), self.right.unsqueeze(0)
        sums = compiled.gram(left, right, starts=starts)
        squares = Outer.guarded(sums, self._squares_of)
        if sums.cancelled:
            budget.doubt(self.mass())
        return squares.view(n, -1)[:, :-1].sum(1)

    def _squares_of(self, numbers: Tensor) -> Tensor:
        """Of a record and an expert, the one behind the last included."""
        count = self.starts.shape[1]
        formed = [
            self._formed(k // count, k % count).square().sum() if (k + 1) % count else self.zero
            for k in numbers.tolist()
        ]
        return torch.stack(formed)

    @property
    def zero(self) -> Tensor:
        return self.left.new_zeros(())

    def _formed(self, record: int, expert: int) -> Tensor:
        start, end = self.starts[record, expert : expert + 2].tolist()
        return self.left[start:end].t() @ self.right[start:end]

    def weighted_sum(self, weights: Weights) -> Tensor:
        counts = self.starts.diff(dim=1)
        places = torch.arange(len(self.left), device=counts.device).view(len(counts), -1)
        experts = (places.unsqueeze(2) >= self.starts[:, 1:].unsqueeze(1)).sum(2).flatten()
        order = experts.argsort(stable=True)
        left, right = self.left[order], self.right[order]
        right *= weights.of_rows(places.shape[1], False, right.dtype)[order].unsqueeze(1)
        sizes = counts.sum(0).tolist()
        total = sum(sizes)
        pairs = zip(left[:total].split(sizes), right[:total].split(sizes), strict=True)
        return torch.stack([of_left.t() @ of_right for of_left, of_right in pairs])

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        chosen, experts = torch.arange(self.num_samples)[samples].tolist(), self.ends.shape[1]
        formed = [torch.stack([self._formed(k, e) for e in range(experts)]) for k in chosen]
        return torch.stack(formed)

    def mass(self) -> Tensor:
        squares = square_sum(self.left) * square_sum(self.right)
        return squares.view(self.num_samples, -1).sum(1)

    def zero_samples(self, samples: Tensor) -> None:
        each = len(self.left) // self.num_samples
        rows = samples.repeat_interleave(each)
        self.left, self.right = self.left.clone(), self.right.clone()
        self.left[rows] = 0
        self.right[rows] = 0
