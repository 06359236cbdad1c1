"""Whose row is it?  The record of each row of an operation, learned from gradients.

A function that sees the whole batch may lay records out as it likes: packed, routed, end to end.
So losses are backpropagated twice: once as they are, and once with a secret code for each record,
plus or minus a power of two.  A row of one record then gets its code times the first gradient, to
the last bit: a power of two rounds nothing.  Hence

- the ratio of the two gradients tells the record, and
- a row that several records reach shows, however little one of them adds to it: codes are up to
  2^79 apart, and drawn anew each time.

With more records than codes there are two passes with codes, one for each digit of a number.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from psac.gradients.precision import wide

NOBODY = -1  # a row without gradient
EXPONENTS = 80
EXPONENTS_OF_FLOAT16 = 8
COLUMNS = 32
# Smaller gradients may have lost digits, and count as none.
TINY, TINY_IN_FLOAT16 = 2.0**-120, 2.0**-19
# Kernels that add in another order each time may round differently.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
TOLERANCE_IN_HALF = 3e-2


class Mixed(Exception):
    """Internal: several records reach one row."""


class NotFinite(Exception):
    """Internal: a gradient is not finite, so that it cannot be told whose it is."""


class Codes:
    """Distinct codes of n records, by pass."""

    def __init__(self, num_records: int, is_float16: bool, device: torch.device) -> None:
        exponents = range(EXPONENTS_OF_FLOAT16 if is_float16 else EXPONENTS)
        values = [sign * 2.0**e for e in exponents for sign in (1, -1)]
        self.base, self.passes, self._is_float16 = len(values), 1, is_float16
        self._tiny = TINY_IN_FLOAT16 if is_float16 else TINY
        while self.base**self.passes < num_records:
            self.passes += 1
        count = self.base**self.passes
        numbers = random.SystemRandom().sample(range(count), num_records)
        # the last entry is nobody's
        self.values = torch.tensor([*values, 0.0], device=device)
        chosen = torch.tensor(numbers, device=device, dtype=torch.long)
        self._records = torch.full((count,), NOBODY, device=device)
        self._records[chosen] = torch.arange(num_records, device=device)
        digits = [chosen // self.base**k % self.base for k in range(self.passes)]
        self.digits = [torch.cat([d, d.new_tensor([NOBODY])]) for d in digits]

    def cotangent(self, k: int) -> Tensor:
        """What losses are multiplied by in pass k."""
        return self.values[self.digits[k][:-1]]

    def explains(self, first: Tensor, coded: Tensor, digits: Tensor) -> bool:
        """Whether rows with these codes give the second of two gradients [m, f], bit by bit."""
        if not torch.equal(coded, first * self._factors(digits, first)):
            return False
        is_nobodys = digits < 0
        return not bool(is_nobodys.any()) or not bool(first[is_nobodys].any())

    def digits_of(self, first: Tensor, coded: Tensor) -> tuple[Tensor, Tensor]:
        """The codes of rows, and the first gradient without rows that are nobody's."""
        if not first.numel():
            return torch.full((len(first),), NOBODY, device=first.device), first
        step = -(-first.shape[1] // COLUMNS)  # some columns mostly tell
        digits, _ = self._read(first[:, ::step], coded[:, ::step])
        if self.explains(first, coded, digits):
            return digits, first
        return self._exactly(first, coded)

    def _read(self, first: Tensor, coded: Tensor) -> tuple[Tensor, Tensor]:
        """The codes of rows by their largest entries, and those entries."""
        peaks, places = first.abs().max(1, keepdim=True)
        ratio = (coded.gather(1, places) / first.gather(1, places)).squeeze(1).double()
        exponents = ratio.abs().log2().round().nan_to_num(-1, -1, -1).long()
        digits, peaks = 2 * exponents + (ratio < 0), peaks.squeeze(1)
        digits[(peaks <= self._tiny) | (exponents < 0) | (digits >= self.base)] = NOBODY
        return digits, peaks

    def _exactly(self, first: Tensor, coded: Tensor) -> tuple[Tensor, Tensor]:
        """With all columns, and with room for rounding."""
        if not bool(torch.isfinite(first).all() & torch.isfinite(coded).all()):
            raise NotFinite
        digits, peaks = self._read(first, coded)
        factors, is_alive = self._factors(digits, first), peaks > self._tiny
        apart = (coded - first * factors).abs().amax(1)
        rounding = TOLERANCE_IN_HALF
        if not self._is_float16:
            rounding = TOLERANCE.get(first.dtype, rounding)
        allowed = rounding * peaks * factors.abs().squeeze(1)
        allowed = torch.where(is_alive, allowed, self._tiny * self.values.max())
        if bool((is_alive & (digits < 0) | (apart > allowed)).any()):
            raise Mixed
        return digits, first.masked_fill(~is_alive.unsqueeze(1), 0)

    def _factors(self, digits: Tensor, like: Tensor) -> Tensor:
        return self.values[digits].to(like.dtype).unsqueeze(1)

    def owners(self, digits: Sequence[Tensor]) -> Tensor:
        """[m]: the records of rows, from their digits in all passes."""
        number = sum(d.clamp(min=0) * self.base**k for k, d in enumerate(digits))
        owners = self._records[number]
        is_alive = torch.stack([d >= 0 for d in digits]).all(0)  # a guess may name a row of zeros
        if bool((is_alive & (owners < 0)).any()):
            raise Mixed
        return torch.where(is_alive, owners, NOBODY)


class Owners:
    """[m]: the record of each row; and rows by record.

    Where records have equally many rows, one after another or in turns, nothing is copied.
    """

    def __init__(self, owners_m: Tensor, num_records: int) -> None:
        self.values, self.num_records = owners_m, num_records
        m, n = len(owners_m), num_records
        each, odd = divmod(m, n)
        records = torch.arange(n, device=owners_m.device)
        self._shape: tuple[int, int] | None = None  # of rows, where nothing need be copied
        self._is_together = False  # or in turns
        if m and not odd and self._fits(records.unsqueeze(1), (n, each)):
            self._shape, self._is_together = (n, each), True
        elif m and not odd and self._fits(records, (each, n)):
            self._shape = each, n

    def _fits(self, expected: Tensor, shape: tuple[int, int]) -> bool:
        owners = self.values.view(shape)
        return bool(((owners == expected) | (owners < 0)).all())

    @property
    def is_even(self) -> bool:
        return self._shape is not None

    def is_each_its_own(self) -> bool:
        """Whether there is one row for each record, in order."""
        return self._is_together and len(self.values) == self.num_records

    @functools.cached_property
    def _order(self) -> Tensor:
        """Numbers of rows, one record after another, without those of nobody."""
        return self.values.argsort(stable=True)[int((self.values < 0).sum()) :]

    @functools.cached_property
    def counts(self) -> Tensor:
        """[n]: how many rows."""
        return torch.bincount(self.values[self._order], minlength=self.num_records)

    @functools.cached_property
    def _longest(self) -> int:
        return max(1, int(self.counts.max()))

    @functools.cached_property
    def _places(self) -> Tensor:
        """Where sorted rows stand among [n, longest]."""
        starts = self.counts.cumsum(0) - self.counts
        owners = self.values[self._order]
        return torch.arange(len(owners), device=owners.device) + (
            owners * self._longest - starts[owners]
        )

    def sorted(self, values_m: Tensor) -> Tensor:
        """The rows, one record after another; those of nobody are left out."""
        return values_m[self._order]

    def padded(self, values_m: Tensor) -> Tensor:
        """Sorted rows as [n, longest, ...], with zeros behind those of a record."""
        n, p = self.num_records, self._longest
        rows = values_m.new_zeros(n * p, *values_m.shape[1:])
        return rows.index_copy_(0, self._places, values_m).unflatten(0, (n, p))

    def rows(self, values_m: Tensor) -> Tensor:
        """[m, ...] -> [n, longest, ...]."""
        if self._shape is None:
            return self.padded(self.sorted(values_m))
        rows = values_m.unflatten(0, self._shape)
        return rows if self._is_together else rows.transpose(0, 1)

    def sums(self, values_m: Tensor) -> Tensor:
        """[m, ...] -> [n, ...]: over the rows of each record."""
        values = wide(values_m)
        if self._shape is not None:
            return values.unflatten(0, self._shape).sum(1 if self._is_together else 0)
        total = values.new_zeros(self.num_records + 1, *values.shape[1:])  # the last is nobody's
        owners = self.values.where(self.values >= 0, self.num_records)
        return total.index_add_(0, owners, values)[:-1]
