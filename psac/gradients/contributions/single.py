"""Matrix products with one row a sample: the gradient of sample n is left[n] x right[n].

They are what a linear layer sees that stands behind pooling or flattening, or in an MLP. Norms are
products of norms, and the bias gets its own on the way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from psac.gradients.contributions.base import Bias, Budget, Outer, product_of, square_sum
from psac.gradients.contributions.memory import references, references_of_attributes
from psac.gradients.contributions.weights import Weights
from psac.gradients.kernels.loops import loops
from psac.gradients.precision import wide


class Single:
    """gradient[n] = left[n, :] x right[n, :], of shape [l, r]."""

    method = "product of norms"

    def __init__(self, left_nl: Tensor, right_nr: Tensor, grads_are_left: bool = False):
        self.left, self.right, self.grads_are_left = left_nl, right_nr, grads_are_left
        self.num_samples = len(left_nl)
        self.bias: Bias | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[1], self.right.shape[1]

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    def as_outer(self) -> Outer:
        """The same, as a sum over one position."""
        left, right = (side.unflatten(0, (-1, 1, 1)) for side in (self.left, self.right))
        return Outer(left, right, self.shape, inputs_are_left=not self.grads_are_left)

    def transposed(self) -> Single:
        """The same contribution to the transposed matrix."""
        turned = Single(self.right, self.left, not self.grads_are_left)
        turned.bias = self.bias
        return turned

    def with_bias(self) -> Bias:
        """The bias that is added to the product."""
        grads = self.left if self.grads_are_left else self.right
        self.bias = Bias(self.num_samples, lambda: wide(grads))
        return self.bias

    def norms_squared(self, budget: Budget) -> Tensor:
        inputs, grads = (self.right, self.left) if self.grads_are_left else (self.left, self.right)
        compiled = loops()
        if compiled is not None and compiled.serves(inputs, grads):
            norms, squares = compiled.pairs(inputs, grads)
        else:
            squares = square_sum(wide(grads))
            norms = product_of(square_sum(wide(inputs)), squares)
        if self.bias is not None:
            self.bias.squares = squares
        return norms

    def weighted_sum(self, weights: Weights) -> Tensor:
        """It is the last time that the output gradients are needed.

        They are scaled where they lie, if nobody else can see them.
        """
        in_place = self._grads_are_ours() and (self.bias is None or weights.of_all)
        left, right = wide(self.left), wide(self.right)
        grads = left if self.grads_are_left else right
        if not in_place or not grads.is_contiguous():  # entries may share memory with each other
            return weights.product(left, right, weights.like(left))
        values, compiled = weights.like(grads), loops()
        if self.bias is None:
            grads.mul_(values.unsqueeze(1))
        elif compiled is not None and compiled.serves(grads, values):
            self.bias.total = compiled.scaling(grads, values)
        else:
            self.bias.total = grads.mul_(values.unsqueeze(1)).sum(0)
        return torch.mm(left.t(), right)

    def _grads_are_ours(self) -> bool:
        """Whether this and its bias are all that can see the output gradients."""
        count = references(self.left) if self.grads_are_left else references(self.right)
        return count is not None and count == references_of_attributes(1 + (self.bias is not None))

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        left, right = wide(self.left[samples]), wide(self.right[samples])
        return left.unsqueeze(2) * right.unsqueeze(1)

    def mass(self) -> Tensor:
        """One term cannot cancel."""
        return square_sum(wide(self.left)) * square_sum(wide(self.right))

    def zero_samples(self, samples: Tensor) -> None:
        self.left, self.right = self.left.clone(), self.right.clone()
        self.left[samples] = 0
        self.right[samples] = 0
