"""What one operation adds to the per-sample gradients of one tensor.

A contribution stands for n gradients of the shape of a weight, without forming them where that is
dearer, and answers three questions:

    norms_squared(budget)  [n]         the squared norm of each sample's gradient
    weighted_sum(w)      weight shape  sum over samples of w[n] * gradient[n]
    dense()              [n, shape]    the gradients themselves
    mass()               [n]           squared norms if no terms of a gradient cancelled, or more

    Dense    holds them.
    Outer    a sum over positions p of left[n, p, :] x right[n, p, :] (every matrix product).
    Bias     a sum over positions of output gradients, formed on the way where possible.
    Ragged   an Outer of which some positions add nothing (in ragged.py).
    Single   an Outer of one position (in single.py).
    Lookup   rows of a table (in lookup.py).
    Patches  a convolution's weight (in convolution.py).

Letters: n sample, h group, p position, l left features, r right features. Norms are computed in
float32 at least. `norms_squared` may replace what it holds by a cheaper form of the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from psac.gradients.contributions.memory import TEMPORARY_BYTES, slices
from psac.gradients.contributions.weights import Weights
from psac.gradients.kernels.loops import CANCELLATION, GramSum, Loops, loops
from psac.gradients.precision import wide

# Of the mass of its terms, what a squared norm is at least taken for when it is weighed. The terms
# enter the weighted sum, times a weight that would else grow without limit while they cancel, until
# rounding takes the digits of other samples. So they are a thousand bounds at most.
FLOOR = 1e-6
CACHED_BYTES = 5 * 2**20  # of gradients of one layer that are soon read again


class Contribution(Protocol):
    method: str  # how norms were taken, for people
    num_samples: int

    def norms_squared(self, budget: Budget) -> Tensor: ...

    def weighted_sum(self, weights: Weights) -> Tensor: ...

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor: ...

    def mass(self) -> Tensor: ...

    def zero_samples(self, samples: Tensor) -> None: ...


def square_sum(values_n: Tensor) -> Tensor:
    """[n, ...] -> [n], without a temporary of the size of the values."""
    flat = rows(values_n)
    return torch.linalg.vector_norm(flat, dim=1).square() if flat.shape[1] else flat.sum(1)


def largest_squared(values_n: Tensor) -> Tensor:
    """[n, ...] -> [n]: the largest square.  torch's infinity norm takes forty times as long."""
    flat = rows(values_n)
    return torch.maximum(flat.amax(1), -flat.amin(1)).square()


def rows(values_n: Tensor) -> Tensor:
    """[n, ...] -> [n, all the rest]."""
    return values_n.flatten(1) if values_n.dim() > 1 else values_n.unsqueeze(1)


class Budget:
    """How many bytes of gradients may be kept in one backward, and what it need not compute twice.

    Several operations may read the same inputs (query, key and value of attention), and the same
    output gradient (a weight and its bias).
    """

    def __init__(self, num_bytes: int):
        self.left = num_bytes
        self._last: dict[str, tuple[tuple, Tensor, Tensor]] = {}
        self._squares: dict[tuple, tuple[Tensor, Tensor]] = {}
        self._masses: list[Tensor] = []

    def doubt(self, mass: Tensor) -> None:
        """Terms of this mass [n] may cancel, and are added to the weighted sum one by one."""
        self._masses.append(mass)

    def floor(self) -> Tensor | None:
        """[n]: squared norms below this are not believed."""
        return FLOOR * self.mass() if self.doubts else None

    @property
    def doubts(self) -> bool:
        return bool(self._masses)

    def mass(self) -> Tensor:
        """[n]: of all terms that may cancel."""
        return sum(self._masses[1:], self._masses[0])

    def allows(self, kept: int, replaced: int) -> bool:
        """Whether gradients may be kept in place of the activations that they came from.

        Half of those count as freed: some are read by other operations too. What is allowed is
        taken from the budget.
        """
        price = max(0, kept - replaced // 2)
        if price > self.left:
            return False
        self.left -= price
        return True

    def forget(self) -> None:
        """Norms are there: what was remembered for them would only hold memory."""
        self._last, self._squares = {}, {}

    def row_squares(self, values: Tensor) -> Tensor:
        """Squared norms of the rows; an output gradient is asked for by a weight and its bias."""
        if not values.numel():
            return wide(values).new_zeros(math.prod(values.shape[:-1]))
        key = (values.data_ptr(), values.shape[-1], values.stride()[:-1][-1:])
        if key not in self._squares or values.numel() != self._squares[key][0].numel():
            self._squares[key] = values, square_sum(wide(values).reshape(-1, values.shape[-1]))
        return self._squares[key][1]

    def once(
        self, what: str, inputs: Tensor, make: Callable[[], Tensor], *more: object
    ) -> tuple[Tensor, bool]:
        """What `make` gives for these inputs, and whether it was made for the operation before."""
        key = (inputs.data_ptr(), inputs.shape, inputs.stride(), *more)
        if what in self._last and self._last[what][0] == key:
            return self._last[what][2], True
        # the tensor is held, so that its address stays its own
        self._last[what] = key, inputs, make()
        return self._last[what][2], False


class Dense:
    """The gradients themselves, and their squared norms where whoever formed them has those."""

    method = "instantiated"

    def __init__(self, values_n: Tensor, squares: Tensor | None = None):
        self.values, self.squares = wide(values_n), squares
        self.num_samples = len(values_n)

    def norms_squared(self, budget: Budget) -> Tensor:
        return budget.row_squares(rows(self.values)) if self.squares is None else self.squares

    def weighted_sum(self, weights: Weights) -> Tensor:
        flat = rows(self.values)
        return torch.mv(flat.t(), weights.like(flat)).view(self.values.shape[1:])

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        return self.values[samples]

    def mass(self) -> Tensor:
        return square_sum(self.values)

    def zero_samples(self, samples: Tensor) -> None:
        self.values = self.values.clone()
        self.values[samples] = 0


class Bias(Dense):
    """[n, r]: a sum of output gradients, of which a weight is another.

    It is formed when it is first asked for, unless the weight's contribution has done so on its
    way.
    """

    def __init__(self, num_samples: int, form: Callable[[], Tensor]):
        self._form: Callable[[], Tensor] | None = form
        self._values: Tensor | None = None
        self.num_samples = num_samples
        self.squares: Tensor | None = None
        self.total: Tensor | None = None  # the weighted sum, once the gradients are used up

    def weighted_sum(self, weights: Weights) -> Tensor:
        return super().weighted_sum(weights) if self.total is None else self.total

    @property
    def values(self) -> Tensor:
        if self._form is not None:
            self.values = self._form()
        assert self._values is not None
        return self._values

    @values.setter
    def values(self, values_nr: Tensor) -> None:
        self._values, self._form = values_nr, None


class Outer:
    """gradient[n, h] = sum over p of left[n, h, p, :] x right[n, h, p, :].

    Of shape [h, l, r] (h dropped if 1).
    """

    def __init__(
        self,
        left_nhpl: Tensor,
        right_nhpr: Tensor,
        shape: tuple[int, ...],
        inputs_are_left: bool | None = None,
    ):
        self.left, self.right = drop_zero_rows(left_nhpl, right_nhpr)
        self.shape, self.num_samples = shape, len(left_nhpl)
        self.inputs_are_left = inputs_are_left is not False
        # whether the inputs are what other operations may read too
        self.shared = inputs_are_left is not None and self.left is left_nhpl
        self.bias: Bias | None = None
        self.kept: Dense | None = None
        self.method = "not measured"

    def transposed(self) -> Outer:
        """The same contribution to the transposed matrix."""
        turned = object.__new__(Outer)
        turned.left, turned.right, turned.shape = self.right, self.left, self.shape[::-1]
        turned.kept, turned.method, turned.num_samples = None, self.method, self.num_samples
        turned.bias, turned.shared = self.bias, self.shared
        turned.inputs_are_left = not self.inputs_are_left
        return turned

    def with_bias(self) -> Bias:
        """The bias that is added to the product of which this is the right factor's gradient."""
        rows_npr = self.right.squeeze(1)

        def form() -> Tensor:
            rows = wide(rows_npr)
            return rows.squeeze(1) if rows.shape[1] == 1 else rows.sum(1)

        self.bias = Bias(self.num_samples, form)
        return self.bias

    def norms_squared(self, budget: Budget) -> Tensor:
        (n, h, p, l), r = self.left.shape, self.right.shape[-1]
        if not p * l * r:
            self.method = "nothing to measure"
            return wide(self.left).new_zeros(n)
        if p == 1:
            self.method = "product of norms"
            products = product_of(budget.row_squares(self.left), budget.row_squares(self.right))
            return products.view(n) if h == 1 else products.view(n, h).sum(1)
        size = n * h * l * r * self.left.element_size()
        gram, forming = cost_of_gram(p, l, r, bool(self._compiled())), cost_of_forming(p, l, r)
        worth_it = cost_of_keeping(p, l, r, size <= CACHED_BYTES) <= 0.75 * min(gram, forming)
        if worth_it and budget.allows(size, self.nbytes):
            self.method = "instantiated"
            left, right = wide(self.left), wide(self.right)
            formed = torch.matmul(left.transpose(-2, -1), right)
            self.kept = Dense(formed.view(n, *self.shape))
            self.left = self.right = self.left.new_empty(0)
            return self.kept.norms_squared(budget)
        if forming <= gram:
            self.method = "formed in slices"
            budget.doubt(self.mass())
            return torch.cat([square_sum(self.dense(s)) for s in slices(n, h * l * r * 4)])
        self.method = "gram"
        return self.by_gram(budget)

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    def mass(self) -> Tensor:
        if self.kept is not None:
            return self.kept.mass()
        lengths = [
            torch.linalg.vector_norm(side, dim=-1, dtype=wide(side[:0]).dtype)
            for side in (self.left, self.right)
        ]
        return torch.mul(*lengths).square().sum((1, 2))

    def _compiled(self) -> Loops | None:
        """The loops that take Gram sums, where they serve."""
        compiled = loops() if self.left.shape[1] == 1 else None
        return compiled if compiled and compiled.serves(self.left, self.right) else None

    def by_gram(self, budget: Budget | None = None) -> Tensor:
        n, h, p, _ = self.left.shape
        norms, mass = [], []
        compiled = self._compiled()
        if compiled is not None:
            sums = self._compiled_gram(compiled, budget)
            return self.guarded(sums, lambda samples: square_sum(self.dense(samples)), budget)
        parts = slices(n, 2 * h * p * p * 4)
        inputs, grads = self.sides()
        for s in parts:
            if self.shared and budget is not None and len(parts) == 1:
                left, _ = budget.once("gram", inputs, lambda: gram(inputs))
            else:
                left = gram(inputs[s])
            right = gram(grads[s])
            norms.append(torch.linalg.vecdot(rows(left), rows(right)))
            mass.append(diagonal_product(left, right))
        sums = gram_sum(norms, mass)
        return self.guarded(sums, lambda samples: square_sum(self.dense(samples)), budget)

    def sides(self) -> tuple[Tensor, Tensor]:
        """Inputs and output gradients."""
        return (self.left, self.right) if self.inputs_are_left else (self.right, self.left)

    def _compiled_gram(self, compiled: Loops, budget: Budget | None) -> GramSum:
        inputs, grads = (side.squeeze(1) for side in self.sides())
        n, p, width = grads.shape
        known, filled, numbers = None, False, compiled.gram_numbers(p)
        if self.shared and budget is not None and 4 * n * numbers <= TEMPORARY_BYTES:
            known, filled = budget.once("gram", inputs, lambda: inputs.new_empty(n, numbers))
        if self.bias is None:
            return compiled.gram(inputs, grads, known, filled)
        self.bias.values = grads.new_empty(n, width)
        self.bias.squares = grads.new_empty(n)
        return compiled.gram(inputs, grads, known, filled, self.bias.values, self.bias.squares)

    @staticmethod
    def guarded(
        sums: GramSum, directly: Callable[[Tensor], Tensor], budget: Budget | None = None
    ) -> Tensor:
        """A Gram sum that cancels almost wholly has lost its digits.

        Those samples are formed directly.
        """
        norms = sums.squares
        if sums.cancelled:
            weak = (norms < CANCELLATION * sums.mass).nonzero().flatten()
            if budget is not None:
                budget.doubt(sums.mass)
            # the loops compare before they round to float32, so that there may be none
            for part in weak.split(16) if len(weak) else ():
                norms[part] = directly(part)
        return norms

    def weighted_sum(self, weights: Weights) -> Tensor:
        if self.kept is not None:
            return self.kept.weighted_sum(weights)
        left, right = wide(self.left), wide(self.right)
        if left.shape[1] == 1:  # no groups
            return self._all_rows(left.squeeze(1), right.squeeze(1), weights).view(self.shape)
        right = right * weights.like(left).view(-1, 1, 1, 1)
        left_hlq = left.permute(1, 3, 0, 2).flatten(2)
        right_hqr = right.permute(1, 0, 2, 3).flatten(1, 2)
        return torch.bmm(left_hlq, right_hqr).view(self.shape)

    @staticmethod
    def _all_rows(left_npl: Tensor, right_npr: Tensor, weights: Weights) -> Tensor:
        """One matrix product over all rows, in the order in which they lie in memory."""
        (n, p, l), r = left_npl.shape, right_npr.shape[-1]
        outside = not left_npl.is_contiguous() and left_npl.transpose(0, 1).is_contiguous()
        if outside:
            left_npl, right_npr = left_npl.transpose(0, 1), right_npr.transpose(0, 1)
        left, right = left_npl.reshape(n * p, l), right_npr.reshape(n * p, r)
        return weights.product(left, right, weights.of_rows(p, outside, left.dtype))

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        if self.kept is not None:
            return self.kept.dense(samples)
        left, right = wide(self.left[samples]), wide(self.right[samples])
        formed = torch.matmul(left.transpose(-2, -1), right)
        return formed.view(formed.shape[0], *self.shape)

    def zero_samples(self, samples: Tensor) -> None:
        if self.kept is not None:
            self.kept.zero_samples(samples)
            return
        self.left, self.right = self.left.clone(), self.right.clone()
        self.left[samples] = 0
        self.right[samples] = 0


def gram(values_nhpd: Tensor) -> Tensor:
    """[n, h, p, p]: inner products of all pairs of positions."""
    values = wide(values_nhpd)
    return torch.matmul(values, values.transpose(-2, -1))


def gram_sum(squares: Sequence[Tensor], mass: Sequence[Tensor]) -> GramSum:
    """From parts of the batch."""
    norms, total = torch.cat(list(squares)), torch.cat(list(mass))
    norms = torch.where(total.isfinite(), norms, total)
    return GramSum(norms, total, bool((norms < CANCELLATION * total).any()))


def diagonal_product(left: Tensor, right: Tensor) -> Tensor:
    """Not finite where one factor is so large that underflow of the other counts."""
    of_left, of_right = (side.diagonal(dim1=-2, dim2=-1) for side in (left, right))
    plain = (of_left * of_right).sum((1, 2))
    largest = product_of(of_left.amax((1, 2)), of_right.amax((1, 2)))
    return torch.where(largest.isfinite(), plain, math.inf)


def product_of(of_left: Tensor, of_right: Tensor) -> Tensor:
    """A product of squares; infinite, so that the sample is computed alone, where it may be wrong.

    Squares below 1e-38 are lost in float32: that counts where the other factor is very large.
    """
    low, high = torch.minimum(of_left, of_right), torch.maximum(of_left, of_right)
    return torch.where((high > 1e9) & (low < 1e-9), math.inf, of_left * of_right)


def drop_zero_rows(left_nhpl: Tensor, right_nhpr: Tensor) -> tuple[Tensor, Tensor]:
    """Leaves out positions whose output gradient is zero (padding).

    Exact, and worth it from a quarter on. Where there are compiled loops, ragged.py does it.
    """
    n, h, p, _ = right_nhpr.shape
    compiled = loops()
    if h != 1 or p < 8 or (compiled is not None and compiled.serves(left_nhpl, right_nhpr)):
        return left_nhpl, right_nhpr
    left, right = left_nhpl.squeeze(1), right_nhpr.squeeze(1)
    # a few features tell that most are alive
    if int((right[..., :4] != 0).any(-1).sum(1).max()) > 0.75 * p:
        return left_nhpl, right_nhpr
    alive_np = (right != 0).any(-1)
    longest = max(1, int(alive_np.sum(1).max()))
    if longest > 0.75 * p:
        return left_nhpl, right_nhpr
    # Positions that stand in for a shorter sample have zero output gradient themselves: they add
    # nothing.
    first = alive_np.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :longest]
    if not (left.is_contiguous() and right.is_contiguous()):
        picked = (
            torch.take_along_dim(values, first.unsqueeze(-1), dim=1) for values in (left, right)
        )
    else:
        place = (first + p * torch.arange(n, device=first.device).unsqueeze(1)).flatten()
        picked = (
            values.flatten(0, 1)[place].unflatten(0, (n, longest)) for values in (left, right)
        )
    left, right = (values.unsqueeze(1) for values in picked)
    return left, right


# Multiply-adds per sample until norms and weighted sum are both there. An entry that is written
# and read back costs about as much as ten; one that is kept, in memory that is not warm, eighty.
# Compiled, a Gram sum is half the products, at a little less than the full rate.
def cost_of_gram(p: int, l: int, r: int, compiled: bool) -> float:
    return (0.6 if compiled else 1.0) * p * p * (l + r) + p * l * r


def cost_of_keeping(p: int, l: int, r: int, is_cached: bool = False) -> float:
    return p * l * r + (3 if is_cached else 80) * l * r


def cost_of_forming(p: int, l: int, r: int) -> float:
    return 2 * p * l * r + 20 * l * r
