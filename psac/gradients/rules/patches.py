"""The weight of a convolution of 1 to 3 dimensions, seen by n records.

Eight ways to the norms of per-sample weight gradients; which is cheapest depends on shapes
(convolution_costs.py):

    direct products     compiled: formed one by one in the cache, and kept
    depthwise products  compiled, for one input channel: along rows of outputs; kept
    direct norms        compiled: formed one by one in the cache, and dropped
    gram of pixels      <patch p, patch q> is a sum of shifted inner products of pixels: k^2 fewer
                        products than patches
    gram of patches     the same from the unfolded input, where shifts do not line up
    shifted products    one batched product per kernel offset, on the padded input as it lies in
                        memory; kept
    unfolded products   one batched product with the unfolded input; kept
    grouped             one convolution with as many groups as samples; kept, or formed in slices

Where gradients are kept, the weighted sum is a matrix-vector product; where not, one ordinary
weight gradient, or the compiled loop again.

Letters: n sample, h group, p output position, c input channel of a group, r output channel of a
group, l = c x kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from psac.gradients.contributions.base import Bias, Budget, Dense, largest_squared, square_sum
from psac.gradients.contributions.memory import TEMPORARY_BYTES, slices
from psac.gradients.contributions.weights import Weights
from psac.gradients.kernels.loops import CHUNKS
from psac.gradients.precision import wide
from psac.gradients.rules.convolution_costs import Sizes, cheapest, sums_directly
from psac.gradients.rules.plane import Plane


@dataclass(frozen=True)
class Settings:
    """How the convolution was called."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def run(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.convolution(
            inputs, weight, bias, self.stride, self.padding, self.dilation, self.transposed,
            self.output_padding, self.groups,
        )  # fmt: skip

    def weight_gradient(
        self, inputs: Tensor, grad: Tensor, shape: tuple[int, ...], factor: int = 1
    ) -> Tensor:
        """The ordinary weight gradient of a batch; with `factor` times the groups."""
        return torch.ops.aten.convolution_backward(
            grad, inputs, inputs.new_empty(1).expand(shape), None,
            self.stride, self.padding, self.dilation, self.transposed, self.output_padding,
            self.groups * factor, [False, True, False],
        )[1]  # fmt: skip


class Patches:
    """The weight of a convolution, seen by n records."""

    def __init__(
        self,
        inputs: Tensor,
        grad: Tensor,
        num_samples: int,
        settings: Settings,
        shape: tuple[int, ...],
        bias: Bias | None,
    ):
        """`inputs` and `grad` are [frames, channels, ...], those of a record together."""
        self.inputs, self.grad, self.num_samples = wide(inputs), wide(grad), num_samples
        self.settings, self.shape, self.bias = settings, shape, bias
        self.kept: list[Dense] = []  # in the order of kernel offsets if there are several
        self.lanes = 0  # if not 0, what is kept is [n, h, l, lanes], of which some r count
        self.method = "not measured"

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.grad.nbytes

    def norms_squared(self, budget: Budget) -> Tensor:
        plane = Plane(self) if self.is_plane() else None
        self.method = self.choose(plane, budget)
        if self.method == "formed in slices":
            size = math.prod(self.shape) * self.inputs.element_size()
            budget.doubt(self.mass())
            return torch.cat([square_sum(self.dense(s)) for s in slices(self.num_samples, size)])
        if plane is None or self.method == "grouped":
            self.kept = [Dense(self.dense())]
        elif self.method == "gram of pixels":
            return plane.gram_of_pixels(budget)
        elif self.method == "gram of patches":
            return plane.gram_of_patches(budget)
        elif self.method == "direct norms":
            mass = self.inputs.new_empty(self.num_samples)
            budget.doubt(mass)
            return plane.direct(self.bias, None, mass)
        elif self.method == "direct products":
            formed = plane.room_for_products()
            norms = plane.direct(self.bias, formed)
            self.kept, self.lanes = [Dense(formed)], formed.shape[-1]
            self.inputs = self.grad = self.inputs.new_empty(0)
            return norms
        elif self.method == "depthwise products":
            self.kept = [Dense(*reversed(plane.depthwise()))]
        elif self.method == "shifted products":
            self.kept = [Dense(values) for values in plane.shifted_products()]
        else:
            self.kept = [Dense(plane.unfolded_products())]
        self.inputs = self.grad = self.inputs.new_empty(0)
        return torch.stack([part.norms_squared(budget) for part in self.kept]).sum(0)

    def choose(self, plane: Plane | None, budget: Budget) -> str:
        """The cheapest way that the memory budget allows."""
        compiled = plane.compiled() if plane else None
        best, kept = cheapest(
            self._sizes(), plane.geometry if plane else None, compiled.lanes if compiled else None
        )
        size = self.num_samples * math.prod(self.shape) * self.inputs.element_size()
        return kept if kept and budget.allows(size, self.nbytes) else best

    def _sizes(self) -> Sizes:
        groups, (c, *kernel) = self.settings.groups, self.shape[1:]
        positions, frames = math.prod(self.grad.shape[2:]), len(self.grad) // self.num_samples
        r, k = self.shape[0] // groups, math.prod(kernel)
        # about as many, so that batches of all sizes are measured in one way
        samples = 1 << (self.num_samples.bit_length() - 1)
        return Sizes(c, r, k, positions, frames, groups, samples)

    def is_plane(self) -> bool:
        """Whether `Plane` serves: one or two spatial dimensions, not transposed."""
        return not self.settings.transposed and self.grad.dim() in (3, 4)

    def _samples_first(self, tensor: Tensor) -> Tensor:
        """[n, frames, ...]"""
        return tensor.reshape(self.num_samples, -1, *tensor.shape[1:])

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        if len(self.kept) == 1:
            return self._as_weight(self.kept[0].dense(samples), self.lanes)
        if self.kept:
            return torch.stack([part.dense(samples) for part in self.kept], -1).view(
                -1, *self.shape
            )
        inputs, grad = (self._samples_first(t)[samples] for t in (self.inputs, self.grad))
        count, frames = inputs.shape[0] * inputs.shape[1], inputs.shape[1]
        merged = self.settings.weight_gradient(
            inputs.reshape(1, -1, *inputs.shape[3:]),
            grad.reshape(1, -1, *grad.shape[3:]),
            (count * self.shape[0], *self.shape[1:]),
            factor=count,
        )
        per_row = merged.view(-1, frames, *self.shape)
        return per_row.sum(1) if frames > 1 else per_row.squeeze(1)

    def weighted_sum(self, weights: Weights) -> Tensor:
        if self.kept:
            sums = [part.weighted_sum(weights) for part in self.kept]
            if len(sums) == 1:
                return self._as_weight(sums[0].unsqueeze(0), self.lanes).squeeze(0)
            return torch.stack(sums, -1).view(self.shape)
        if (found := self._direct_sum(weights)) is not None:
            return found
        inputs, grad = (self._samples_first(t) for t in (self.inputs, self.grad))
        factor = weights.like(grad).view(-1, *[1] * (grad.dim() - 1))
        if inputs.numel() < grad.numel():
            inputs = inputs * factor
        else:
            grad = grad * factor
        return self.settings.weight_gradient(inputs.flatten(0, 1), grad.flatten(0, 1), self.shape)

    def _direct_sum(self, weights: Weights) -> Tensor | None:
        """By the compiled loop; None where that does not serve, is slower, or takes much memory."""
        plane = Plane(self) if self.is_plane() else None
        compiled = plane.compiled() if plane else None
        if plane is None or compiled is None or not sums_directly(self._sizes(), compiled.lanes):
            return None
        if CHUNKS * math.prod(self.shape) * self.grad.element_size() > TEMPORARY_BYTES:
            return None
        total_hlr = plane.direct_sum(weights.like(self.grad))
        return self._as_weight(total_hlr.unsqueeze(0), total_hlr.shape[-1]).squeeze(0)

    def _as_weight(self, values: Tensor, lanes: int) -> Tensor:
        """[n, ...] as it was kept -> [n, shape of the weight]"""
        if lanes:
            groups = self.settings.groups
            values_nhlr = values.view(len(values), groups, -1, lanes)
            values = values_nhlr[..., : self.shape[0] // groups].transpose(2, 3)
        return values.reshape(-1, *self.shape)

    def mass(self) -> Tensor:
        """More than that: no patch is longer than its largest number allows."""
        if self.kept:
            return torch.stack([part.mass() for part in self.kept]).sum(0)
        inputs, grad = (self._samples_first(t).flatten(1) for t in (self.inputs, self.grad))
        patch = self.inputs.shape[1] * math.prod(self.shape[2:]) * largest_squared(inputs)
        return patch * square_sum(grad)

    def zero_samples(self, samples: Tensor) -> None:
        for part in self.kept:
            part.zero_samples(samples)
        if self.kept:
            return
        for name in ("inputs", "grad"):
            first = self._samples_first(getattr(self, name)).clone()
            first[samples] = 0
            setattr(self, name, first.flatten(0, 1))
