"""Convolutions of 1 to 3 dimensions, with stride, padding, dilation, groups, and transposed ones.

Per-sample weight gradients come from one grouped convolution (groups = samples), which costs about as much as
the ordinary weight gradient of the batch. Where positions are few and channels many, the Gram form of the
unfolded input is cheaper in time and far cheaper in memory, and the weighted sum is one ordinary weight gradient.

Letters: n sample, h group, p output position, l inputs of one output (channels x kernel), r output channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contributions import Contribution, Dense, Outer, slices, square_sum, wide
from ..layout import Layout
from .arrival import Arrival, Contributions


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
        return cls(**{name: getattr(node, f"_saved_{name}") for name in names})

    def weight_gradient(self, inputs: Tensor, grad: Tensor, shape: tuple[int, ...], factor: int = 1) -> Tensor:
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
        self.kept: Dense | None = None
        self.method = "not measured"

    def norms_squared(self) -> Tensor:
        groups = self.settings.groups
        p = math.prod(self.grad.shape[2:]) * (self.grad.shape[0] // self.num_samples)
        l, r = math.prod(self.shape[1:]), self.shape[0] // groups
        if self.unfolds() and gram_is_cheaper(p, l, r, self.inputs[0].numel() + self.grad[0].numel()):
            self.method = "gram of patches"
            return self._by_gram(p, l)
        size = groups * l * r * self.inputs.element_size()
        if size * self.num_samples <= 1.5 * (self.inputs.nbytes + self.grad.nbytes):
            self.method = "instantiated"
            self.kept = Dense(self.dense())
            self.inputs = self.grad = self.inputs.new_empty(0)
            return self.kept.norms_squared()
        self.method = "formed in slices"
        return torch.cat([square_sum(self.dense(s)) for s in slices(self.num_samples, size)])

    def unfolds(self) -> bool:
        return not self.settings.transposed and self.grad.dim() in (3, 4) and self.layout == Layout(0) and (
            self.grad.shape[0] == self.num_samples
        )

    def _by_gram(self, p: int, l: int) -> Tensor:
        groups, settings = self.settings.groups, self.settings
        inputs, grad, kernel = self.inputs, self.grad, list(self.shape[2:])
        lists = [settings.dilation, settings.padding, settings.stride]
        if grad.dim() == 3:  # one spatial dimension is two with the first of size one
            inputs, kernel = inputs.unsqueeze(2), [1, *kernel]
            lists = [[1, *settings.dilation], [0, *settings.padding], [1, *settings.stride]]
        norms = []
        for s in slices(self.num_samples, 4 * (groups * l * p + 2 * p * p)):
            unfolded_nhlp = F.unfold(inputs[s], kernel, *lists).unflatten(1, (groups, l))
            right_nhrp = grad[s].flatten(2).unflatten(1, (groups, -1))
            part = Outer(unfolded_nhlp.transpose(2, 3), right_nhrp.transpose(2, 3), (groups, l, right_nhrp.shape[2]))
            norms.append(part._by_gram())
        return torch.cat(norms)

    def dense(self, samples: slice = slice(None)) -> Tensor:
        if self.kept is not None:
            return self.kept.dense(samples)
        inputs, grad = (self.layout.samples_first(t, self.num_samples)[samples] for t in (self.inputs, self.grad))
        rows, frames = inputs.shape[0] * inputs.shape[1], inputs.shape[1]
        merged = self.settings.weight_gradient(
            inputs.reshape(1, -1, *inputs.shape[3:]), grad.reshape(1, -1, *grad.shape[3:]),
            (rows * self.shape[0], *self.shape[1:]), factor=rows,
        )  # fmt: skip
        per_row = merged.view(-1, frames, *self.shape)
        return per_row.sum(1) if frames > 1 else per_row.squeeze(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.kept is not None:
            return self.kept.weighted_sum(weights)
        factor = weights.to(self.grad.dtype).view(-1, *[1] * self.grad.dim())
        first = self.layout.samples_first(self.grad, self.num_samples) * factor
        inputs = self.layout.samples_first(self.inputs, self.num_samples).flatten(0, 1)
        return self.settings.weight_gradient(inputs, first.flatten(0, 1), self.shape)

    def zero_samples(self, samples: Tensor) -> None:
        if self.kept is not None:
            return self.kept.zero_samples(samples)
        for name in ("inputs", "grad"):
            first = self.layout.samples_first(getattr(self, name), self.num_samples).clone()
            first[samples] = 0
            setattr(self, name, first.flatten(0, 1))
        self.layout = Layout(0)


def gram_is_cheaper(p: int, l: int, r: int, activations: int) -> bool:
    """Gram work p^2 (l + r) plus an unfold against forming p l r; forming it that is too big to keep costs twice."""
    forms = 1.0 if l * r <= 1.5 * activations else 2.0
    return p * p * (l + r) + 8 * p * l + p * l * r < forms * p * l * r + 12 * l * r


__all__ = ["Contribution", "Patches", "convolution"]
