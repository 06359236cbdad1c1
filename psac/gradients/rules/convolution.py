"""Convolutions of 1 to 3 dimensions, with stride, padding, dilation, groups, and transposed ones.

Five ways to the norms of per-sample weight gradients; which is cheapest depends on shapes
(`choose`):

    gram of pixels      <patch p, patch q> is a sum of shifted inner products of pixels: k^2 fewer
                        products than patches
    gram of patches     the same from the unfolded input, where shifts do not line up
    shifted products    one batched product per kernel offset, on the padded input as it lies in
                        memory; kept
    unfolded products   one batched product with the unfolded input; kept
    grouped             one convolution with as many groups as samples; kept, or formed in slices

Where gradients are kept, the weighted sum is a matrix-vector product; where not, one ordinary
weight gradient.

Letters: n sample, h group, p output position, q padded pixel, c input channel of a group, r output
channel of a group, l = c x kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contributions import (
    SCRATCH_BYTES,
    Budget,
    Dense,
    Outer,
    diagonal_product,
    rows,
    scratch,
    slices,
    square_sum,
    wide,
)
from ..layout import Layout
from .arrival import Arrival, Contributions

CACHE_BYTES = 2 * 2**20  # temporaries that are added to again and again should stay in the cache


def convolution(arrival: Arrival) -> Contributions | None:
    if arrival.layout.dim != 0:
        return None
    found: Contributions = {}
    if 1 in arrival.inputs:
        found[1] = Patches(arrival)
    if 2 in arrival.inputs:
        total = wide(arrival.grad).flatten(2).sum(2)
        found[2] = Dense(arrival.samples_first(total).sum(1))
    return found


@dataclass(frozen=True)
class Settings:
    """How the convolution was called."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    @classmethod
    def of(cls, node: Any) -> Settings:
        names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
        given = {name: getattr(node, f"_saved_{name}") for name in names}
        dims = node._saved_input.dim() - 2
        settings: dict[str, Any] = {
            k: v * dims if isinstance(v, (list, tuple)) and len(v) == 1 else v
            for k, v in given.items()
        }
        return cls(**settings)

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
    """The weight of a convolution, seen by n samples."""

    def __init__(self, arrival: Arrival):
        self.inputs, self.grad = wide(arrival.node._saved_input), wide(arrival.grad)
        self.settings = Settings.of(arrival.node)
        self.shape = arrival.shapes[1]
        self.layout, self.num_samples = arrival.layout, arrival.num_samples
        self.kept: list[Dense] = []  # in the order of kernel offsets if there are several
        self.method = "not measured"

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.grad.nbytes

    def norms_squared(self, budget: Budget) -> Tensor:
        self.method = self.choose(budget)
        if self.method == "gram of pixels":
            return Plane(self).gram_of_pixels()
        if self.method == "gram of patches":
            return Plane(self).gram_of_patches()
        if self.method == "formed in slices":
            size = math.prod(self.shape) * self.inputs.element_size()
            return torch.cat([square_sum(self.dense(s)) for s in slices(self.num_samples, size)])
        if self.method == "shifted products":
            self.kept = [Dense(values) for values in Plane(self).shifted_products(budget)]
        elif self.method == "unfolded products":
            self.kept = [Dense(Plane(self).unfolded_products(budget=budget))]
        else:
            self.kept = [Dense(self.dense())]
        self.inputs = self.grad = self.inputs.new_empty(0)
        return torch.stack([part.norms_squared(budget) for part in self.kept]).sum(0)

    def choose(self, budget: Budget) -> str:
        """The cheapest way that the memory budget allows.

        Costs are nanoseconds a sample by rates measured on two cores.
        """
        groups = self.settings.groups
        r, (c, *kernel) = self.shape[0] // groups, self.shape[1:]
        k, p = math.prod(kernel), math.prod(self.grad.shape[2:])
        l, ordinary = c * k, groups * p * c * k * r / 160
        # a grouped convolution is fast for large images of several channels
        grouped = ordinary * max(1.1, 800 / p) * (1 + 3 / c)
        keeping = {"grouped": grouped + groups * l * r / 3}
        forming = {"formed in slices": grouped + ordinary + groups * l * r / 4}
        if self.is_plane():
            plane = Plane(self)
            q = plane.num_pixels()
            forming["gram of patches"] = groups * (p * p * (l + r) / 100 + p * l / 3) + ordinary
            keeping["unfolded products"] = groups * (p * l / 2 + p * l * r / 130 + l * r / 5)
            if plane.shifts_line_up():
                planes = math.prod(self.settings.stride)
                adds = k / planes * p * p / 8
                forming["gram of pixels"] = (
                    groups * (q * q * c * planes / 100 + p * p * r / 100 + adds) + ordinary
                )
                if planes == 1:
                    small = 1 + 8 / min(c, r)  # narrow products run at a fraction of the rate
                    keeping["shifted products"] = groups * (q * l * r / 130 * small + l * r / 5)
        best = min(forming, key=forming.__getitem__)
        kept = min(keeping, key=keeping.__getitem__)
        size = self.num_samples * math.prod(self.shape) * self.inputs.element_size()
        return kept if keeping[kept] < forming[best] and budget.allows(size, self.nbytes) else best

    def is_plane(self) -> bool:
        """Whether `Plane` serves.

        One or two spatial dimensions, not transposed, one frame a sample.
        """
        one_frame = self.layout == Layout(0) and self.grad.shape[0] == self.num_samples
        return not self.settings.transposed and self.grad.dim() in (3, 4) and one_frame

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        if len(self.kept) == 1:
            return self.kept[0].dense(samples).view(-1, *self.shape)
        if self.kept:
            return torch.stack([part.dense(samples) for part in self.kept], -1).view(
                -1, *self.shape
            )
        inputs, grad = (
            self.layout.samples_first(t, self.num_samples)[samples]
            for t in (self.inputs, self.grad)
        )
        count, frames = inputs.shape[0] * inputs.shape[1], inputs.shape[1]
        merged = self.settings.weight_gradient(
            inputs.reshape(1, -1, *inputs.shape[3:]),
            grad.reshape(1, -1, *grad.shape[3:]),
            (count * self.shape[0], *self.shape[1:]),
            factor=count,
        )
        per_row = merged.view(-1, frames, *self.shape)
        return per_row.sum(1) if frames > 1 else per_row.squeeze(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.kept:
            sums = [part.weighted_sum(weights) for part in self.kept]
            return (torch.stack(sums, -1) if len(sums) > 1 else sums[0]).view(self.shape)
        factor = weights.to(self.grad.dtype).view(-1, *[1] * self.grad.dim())
        first = self.layout.samples_first(self.grad, self.num_samples) * factor
        inputs = self.layout.samples_first(self.inputs, self.num_samples).flatten(0, 1)
        return self.settings.weight_gradient(inputs, first.flatten(0, 1), self.shape)

    def zero_samples(self, samples: Tensor) -> None:
        for part in self.kept:
            part.zero_samples(samples)
        if self.kept:
            return
        for name in ("inputs", "grad"):
            first = self.layout.samples_first(getattr(self, name), self.num_samples).clone()
            first[samples] = 0
            setattr(self, name, first.flatten(0, 1))
        self.layout = Layout(0)


class Plane:
    """A convolution over one or two dimensions, the first of size one where there is one."""

    def __init__(self, patches: Patches):
        flat = patches.grad.dim() == 3
        settings = patches.settings
        self.inputs = patches.inputs.unsqueeze(2) if flat else patches.inputs
        self.grad = patches.grad.unsqueeze(2) if flat else patches.grad
        self.kernel = (1, *patches.shape[2:]) if flat else tuple(patches.shape[2:])
        self.stride = (1, *settings.stride) if flat else tuple(settings.stride)
        self.dilation = (1, *settings.dilation) if flat else tuple(settings.dilation)
        self.padding = (0, *settings.padding) if flat else tuple(settings.padding)
        self.groups = settings.groups
        self.out = tuple(self.grad.shape[2:])

    def shifts_line_up(self) -> bool:
        """Whether a kernel offset is a shift of whole output positions.

        If need be after taking strides apart.
        """
        return all(
            s == 1 or (k % s == 0 and d == 1)
            for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True)
        )

    def sizes(self) -> tuple[int, int]:
        """Height and width of the padded input that outputs see, in steps of the stride."""
        reach = [
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(self.out, self.stride, self.kernel, self.dilation, strict=True)
        ]
        height, width = (-(-size // s) for size, s in zip(reach, self.stride, strict=True))
        return height, width

    def num_pixels(self) -> int:
        return math.prod(self.sizes())

    def padded(self, samples: slice = slice(None), extra_rows: int = 0) -> Tensor:
        """[n, h, c, height, width] with strides taken apart into channels.

        Cut to what outputs see.
        """
        inputs = self.inputs[samples]
        (height, width), (sh, sw), (ph, pw) = self.sizes(), self.stride, self.padding
        missing = [
            (height + extra_rows) * sh - inputs.shape[2] - ph,
            width * sw - inputs.shape[3] - pw,
        ]
        padded = F.pad(inputs, (pw, missing[1], ph, missing[0]))
        if sh * sw > 1:
            # [n, channels, height, sh, width, sw]
            split = padded.unflatten(2, (-1, sh)).unflatten(4, (-1, sw))
            padded = split.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
        return padded.unflatten(1, (self.groups, -1))

    def offsets(self) -> list[tuple[int, int]]:
        """Kernel offsets in padded pixels."""
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.stride, self.dilation
        return [(i * dh, j * dw) for i in range(kh // sh) for j in range(kw // sw)]

    def gram_of_pixels(self) -> Tensor:
        """sum over p, p' of <g_p, g_p'> <patch_p, patch_p'>.

        Patches are had from inner products of pixels.
        """
        (height, width), (oh, ow) = self.sizes(), self.out
        first, *others = self.offsets()
        norms, mass = [], []
        size = self.groups * ((height * width) ** 2 + 2 * (oh * ow) ** 2) + self.inputs[0].numel()
        for s in slices(len(self.inputs), 4 * size, CACHE_BYTES):
            columns_nhcq = self.padded(s).flatten(3)
            pixels = torch.matmul(columns_nhcq.transpose(2, 3), columns_nhcq)
            pixels = pixels.view(*pixels.shape[:2], height, width, height, width)

            def shifted(i: int, j: int, pixels: Tensor = pixels) -> Tensor:
                return pixels[:, :, i : i + oh, j : j + ow, i : i + oh, j : j + ow]

            patches = shifted(*first).contiguous()
            for offset in others:
                patches += shifted(*offset)
            grad_nhrp = self.grads(s)
            other = torch.matmul(grad_nhrp.transpose(2, 3), grad_nhrp)
            patches = patches.view_as(other)
            norms.append(torch.linalg.vecdot(rows(patches), rows(other)))
            mass.append(diagonal_product(patches, other))
        return self.guarded(torch.cat(norms), torch.cat(mass))

    def guarded(self, norms: Tensor, mass: Tensor) -> Tensor:
        """Samples whose Gram sum cancels almost wholly are formed directly."""
        return Outer.guarded(
            norms, mass, lambda samples: square_sum(self.unfolded_products(samples))
        )

    def unfolded(self, samples: slice | Tensor) -> Tensor:
        """[n, h, l, p]: a copy of every patch, in the scratch buffer."""
        (kh, kw), (sh, sw), (dh, dw), (ph, pw), (oh, ow) = (
            self.kernel,
            self.stride,
            self.dilation,
            self.padding,
            self.out,
        )
        inputs = (
            F.pad(self.inputs[samples], (pw, pw, ph, ph))
            if ph or pw
            else self.inputs[samples].contiguous()
        )
        n, c, y, x = inputs.stride()
        shape = (*inputs.shape[:2], kh, kw, oh, ow)
        view = inputs.as_strided(shape, (n, c, y * dh, x * dw, y * sh, x * sw))
        # runs along the kernel are longer than those along the output
        if sw > 1 and kw >= 8 and self.groups == 1:
            turned = view.permute(0, 4, 5, 1, 2, 3)
            copy = scratch(turned).copy_(turned)
            return copy.view(len(inputs), 1, oh * ow, -1).transpose(2, 3)
        return scratch(view).copy_(view).view(len(inputs), self.groups, -1, oh * ow)

    def grads(self, samples: slice | Tensor) -> Tensor:
        """[n, h, r, p]"""
        return self.grad[samples].unflatten(1, (self.groups, -1)).flatten(3)

    def gram_of_patches(self) -> Tensor:
        l, p = self.inputs.shape[1] // self.groups * math.prod(self.kernel), math.prod(self.out)
        norms = []
        for s in slices(len(self.inputs), 4 * self.groups * l * p, SCRATCH_BYTES):
            left, right = self.unfolded(s).transpose(2, 3), self.grads(s).transpose(2, 3)
            norms.append(Outer(left, right, (self.groups, l, right.shape[-1])).by_gram())
        return torch.cat(norms)

    def unfolded_products(
        self, samples: Tensor | None = None, budget: Budget | None = None
    ) -> Tensor:
        """[n, output channels, l]"""
        n = len(self.inputs) if samples is None else len(samples)
        l, p = self.inputs.shape[1] // self.groups * math.prod(self.kernel), math.prod(self.out)
        shape = (n, self.groups, self.grad.shape[1] // self.groups, l)
        out = self.inputs.new_empty(shape) if budget is None else budget.empty(shape, self.inputs)
        for s in slices(n, 4 * self.groups * l * p, SCRATCH_BYTES):
            part = s if samples is None else samples[s]
            torch.matmul(self.grads(part), self.unfolded(part).transpose(2, 3), out=out[s])
        return out.flatten(1, 2)

    def shifted_products(self, budget: Budget) -> list[Tensor]:
        """[n, output channels, c] for each kernel offset.

        Rows of outputs are padded to the width of the input.
        """
        inputs = self.padded(extra_rows=1)
        width = inputs.shape[-1]
        columns_nhcq = inputs.flatten(3)
        grad_nhrp = (
            F.pad(self.grad, (0, width - self.out[1])).unflatten(1, (self.groups, -1)).flatten(3)
        )
        n, groups, r, length = grad_nhrp.shape
        offsets = self.offsets()
        out = budget.empty((len(offsets), n, groups, r, columns_nhcq.shape[2]), inputs)
        for k, (i, j) in enumerate(offsets):
            start = i * width + j
            torch.matmul(
                grad_nhrp, columns_nhcq[..., start : start + length].transpose(2, 3), out=out[k]
            )
        return list(out.flatten(2, 3))
