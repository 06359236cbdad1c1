"""Rows of a matrix product, multiplied by the weights of their samples."""

from __future__ import annotations

import torch
from torch import Tensor

from psac.gradients.contributions.memory import SCRATCH_BYTES, TEMPORARY_BYTES, scratch, slices

# Rows that are scaled before they are multiplied: enough that the product runs at its full rate,
# but no more than a small part of what the backward holds.
SCALED_BYTES = 4 * 2**20
SCALED_SHARE = 1 / 32


class Weights:
    """One weight for each sample, as a rule gave them in one backward.

    Several operations may read the same inputs (query, key and value of attention), so that what
    was scaled last is remembered, where it was scaled as a whole.
    """

    def __init__(self, values_n: Tensor, held_bytes: int = 0, of_all: bool = False):
        """`held_bytes` is what the backward holds to form sums.

        `of_all`: all parameters have these weights, and each is summed once.
        """
        self.values, self.of_all = values_n, of_all
        self._room = max(SCRATCH_BYTES, min(SCALED_BYTES, int(SCALED_SHARE * held_bytes)))
        self._rows: dict[tuple[int, bool, torch.dtype], Tensor] = {}
        # key, what was scaled and by what, the result
        self._last: tuple[tuple, tuple[Tensor, Tensor], Tensor] | None = None

    def like(self, tensor: Tensor) -> Tensor:
        """[n], in the tensor's dtype."""
        return towards_zero(self.values, tensor.dtype)

    def of_rows(self, positions: int, outside: bool, dtype: torch.dtype) -> Tensor:
        """One weight for each row, of which a sample has so many.

        They lie together, or, `outside`, those of all samples for each position.
        """
        key = positions, outside, dtype
        if key not in self._rows:
            values = towards_zero(self.values, dtype)
            repeat = values.repeat if outside else values.repeat_interleave
            self._rows[key] = repeat(positions)
        return self._rows[key]

    def product(self, left_ml: Tensor, right_mr: Tensor, weights_m: Tensor) -> Tensor:
        """sum over m of weights[m] * left[m] x right[m]; the narrower side is scaled.

        As a whole where there is room, else block by block in a buffer that is reused.
        """
        (m, l), r = left_ml.shape, right_mr.shape[1]
        limit = self._room if left_ml.is_cpu else TEMPORARY_BYTES
        parts = slices(m, 4 * min(l, r), limit)
        if len(parts) == 1:
            if l < r:
                return torch.mm(self._scaled(left_ml, weights_m).t(), right_mr)
            return torch.mm(left_ml.t(), self._scaled(right_mr, weights_m))
        self._last = None
        factor, total = weights_m.unsqueeze(1), None
        for s in parts:
            a, b = left_ml[s], right_mr[s]
            if l < r:
                a = torch.mul(a, factor[s], out=scratch(a))
            else:
                b = torch.mul(b, factor[s], out=scratch(b))
            total = torch.mm(a.t(), b) if total is None else total.addmm_(a.t(), b)
        return left_ml.new_zeros(l, r) if total is None else total

    def _scaled(self, values_mk: Tensor, weights_m: Tensor) -> Tensor:
        # both are held, so that their addresses stay their own
        key = (values_mk.data_ptr(), values_mk.shape, values_mk.stride(), id(weights_m))
        if self._last is None or self._last[0] != key:
            self._last = None  # freed before there is another
            self._last = key, (values_mk, weights_m), values_mk * weights_m.unsqueeze(1)
        return self._last[2]


def towards_zero(weights_n: Tensor, dtype: torch.dtype) -> Tensor:
    """None grows: a weight of 2e-45 would be 2.8e-45 in float32, and pass the bound by a third."""
    if weights_n.dtype is dtype:
        return weights_n
    values = weights_n.to(dtype.to_real())
    smaller = torch.nextafter(values, torch.zeros_like(values))
    return torch.where(values > weights_n, smaller, values).to(dtype)
