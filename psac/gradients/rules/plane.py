"""Convolutions over one or two dimensions, as per-sample matrix products and Gram matrices.

Where a sample has several frames, only the direct ways serve, which are compiled.

Letters: n sample, h group, p output position, q padded pixel, c input channel of a group, r output
channel of a group, l = c x kernel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.contributions.base import (
    Bias,
    Budget,
    Outer,
    diagonal_product,
    gram_sum,
    largest_squared,
    product_of,
    rows,
    square_sum,
)
from psac.gradients.contributions.memory import SCRATCH_BYTES, scratch, slices
from psac.gradients.kernels.loops import Geometry, GramSum, Loops, loops

if TYPE_CHECKING:
    from psac.gradients.rules.patches import Patches

CACHE_BYTES = 2 * 2**20  # temporaries that are added to again and again should stay in the cache


class Plane:
    """A convolution over one or two dimensions, the first of size one where there is one."""

    def __init__(self, patches: Patches):
        flat = patches.grad.dim() == 3
        settings, self.num_samples = patches.settings, patches.num_samples
        inputs, grad = patches.inputs, patches.grad
        self.inputs = inputs.unsqueeze(2) if flat else inputs
        self.grad = grad.unsqueeze(2) if flat else grad
        self.kernel = (1, *patches.shape[2:]) if flat else tuple(patches.shape[2:])
        self.stride = (1, *settings.stride) if flat else tuple(settings.stride)
        self.dilation = (1, *settings.dilation) if flat else tuple(settings.dilation)
        self.padding = (0, *settings.padding) if flat else tuple(settings.padding)
        self.groups = settings.groups
        self.out = tuple(self.grad.shape[2:])
        self.geometry = Geometry(
            channels=self.inputs.shape[1] // self.groups,
            height=self.inputs.shape[2],
            width=self.inputs.shape[3],
            out_channels=self.grad.shape[1] // self.groups,
            out_height=self.out[0],
            out_width=self.out[1],
            groups=self.groups,
            kernel=self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            frames=len(grad) // patches.num_samples,
        )

    def padded(self, samples: slice = slice(None), extra_rows: int = 0) -> Tensor:
        """[n, h, c, height, width] with strides taken apart into channels.

        Cut to what outputs see.
        """
        inputs = self.inputs[samples]
        (height, width), (sh, sw), (ph, pw) = self.geometry.sizes(), self.stride, self.padding
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

    def compiled(self) -> Loops | None:
        """The loops, where they serve."""
        compiled = loops()
        return (
            compiled if compiled is not None and compiled.serves(self.inputs, self.grad) else None
        )

    def _compiled(self) -> Loops:
        compiled = self.compiled()
        assert compiled is not None, "chosen only where there are compiled loops"
        return compiled

    def room_for_products(self) -> Tensor:
        """[n, h, l, r up to a multiple of the lanes]"""
        lanes = self._compiled().padded(self.geometry.out_channels)
        return self.inputs.new_empty(self.num_samples, self.groups, self.geometry.lines, lanes)

    def direct(
        self, bias: Bias | None, products: Tensor | None, mass: Tensor | None = None
    ) -> Tensor:
        """Norms; `products` takes the gradients, the bias its own, `mass` that of the terms."""
        shape = (self.num_samples, self.grad.shape[1])
        sums = None if bias is None else self.grad.new_empty(shape)
        norms = self._compiled().convolution(
            self.inputs, self.grad, self.geometry, products, sums, mass
        )
        if bias is not None and sums is not None:
            bias.values = sums
        return norms

    def depthwise(self) -> tuple[Tensor, Tensor]:
        """Norms, and the gradients [n, h x r, kernel]."""
        g = self.geometry
        formed = self.inputs.new_empty(self.num_samples, g.groups * g.out_channels, g.lines)
        return self._compiled().depthwise(self.inputs, self.grad, g, formed), formed

    def direct_sum(self, weights_n: Tensor) -> Tensor:
        """[h, l, r up to a multiple of the lanes]: the weighted sum of the gradients."""
        return self._compiled().convolution_sum(self.inputs, self.grad, self.geometry, weights_n)

    def gram_of_pixels(self, budget: Budget) -> Tensor:
        """sum over p, p' of <g_p, g_p'> <patch_p, patch_p'>.

        Patches are had from inner products of pixels.
        """
        compiled = self.compiled()
        if compiled is not None and self.stride == (1, 1):
            sums = compiled.pixels(self.inputs, self.grad, self.geometry)
            peaks = [largest_squared(t) for t in (self.inputs, self.grad)]
            finite = product_of(*peaks).isfinite()
            squares = torch.where(finite, sums.squares, math.inf)
            return self.guarded(sums._replace(squares=squares), budget)
        (height, width), (oh, ow) = self.geometry.sizes(), self.out
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
        return self.guarded(gram_sum(norms, mass), budget)

    def guarded(self, sums: GramSum, budget: Budget) -> Tensor:
        """Samples whose Gram sum cancels almost wholly are formed directly."""
        return Outer.guarded(
            sums, lambda samples: square_sum(self.unfolded_products(samples)), budget
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

    def gram_of_patches(self, budget: Budget) -> Tensor:
        l, p = self.inputs.shape[1] // self.groups * math.prod(self.kernel), math.prod(self.out)
        norms, masses = [], self.inputs.new_zeros(len(self.inputs))
        for s in slices(len(self.inputs), 4 * self.groups * l * p, SCRATCH_BYTES):
            left, right = self.unfolded(s).transpose(2, 3), self.grads(s).transpose(2, 3)
            part, own = Outer(left, right, (self.groups, l, right.shape[-1])), Budget(0)
            norms.append(part.by_gram(own))
            masses[s] = own.mass() if own.doubts else 0
        budget.doubt(masses)
        return torch.cat(norms)

    def unfolded_products(self, samples: Tensor | None = None) -> Tensor:
        """[n, output channels, l]"""
        n = len(self.inputs) if samples is None else len(samples)
        l, p = self.inputs.shape[1] // self.groups * math.prod(self.kernel), math.prod(self.out)
        shape = (n, self.groups, self.grad.shape[1] // self.groups, l)
        out = self.inputs.new_empty(shape)
        for s in slices(n, 4 * self.groups * l * p, SCRATCH_BYTES):
            part = s if samples is None else samples[s]
            torch.matmul(self.grads(part), self.unfolded(part).transpose(2, 3), out=out[s])
        return out.flatten(1, 2)

    def shifted_products(self) -> list[Tensor]:
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
        out = inputs.new_empty(len(offsets), n, groups, r, columns_nhcq.shape[2])
        for k, (i, j) in enumerate(offsets):
            start = i * width + j
            torch.matmul(
                grad_nhrp, columns_nhcq[..., start : start + length].transpose(2, 3), out=out[k]
            )
        return list(out.flatten(2, 3))
