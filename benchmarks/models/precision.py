"""Numbers of other types and orders in memory, and few of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import Case, classes, cross_entropy, dense, next_token, numbers, tokens
from .convolutions import head, normed
from .techniques import Language


def autocast() -> Case:
    """Autocast to bfloat16"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    return nn.Sequential(normed(3, 16, 3, 2), normed(16, 32), head(32)), loss, (
        numbers(3, 24, 24), classes(10),
    )  # fmt: skip


def autocast_transformer() -> Case:
    """Autocast to bfloat16, a language model"""

    def loss(model: nn.Module, words: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return next_token(model, words)

    return Language(1), loss, (tokens(48, 500),)


def bfloat16() -> Case:
    """Weights in bfloat16"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x.bfloat16()).float(), y)

    return dense(256, 256, 256, 10).bfloat16(), loss, (numbers(256), classes(10))


def float64() -> Case:
    """Weights in float64"""
    return dense(64, 128, 10).double(), cross_entropy, (numbers(64).double(), classes(10))


def channels_last() -> Case:
    """channels_last"""
    model = nn.Sequential(normed(3, 32, 3, 2), normed(32, 64), head(64))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)

    return model, loss, (numbers(3, 32, 32), classes(10))


class StraightThrough(torch.autograd.Function):
    """Sign forward, identity backward: written as torch's documentation says for vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class BinaryLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(StraightThrough.apply(x), StraightThrough.apply(self.weight), self.bias)


def binary_network() -> Case:
    """Binary weights (an autograd.Function)"""
    model = nn.Sequential(BinaryLinear(784, 512), nn.Hardtanh(), BinaryLinear(512, 10))
    return model, cross_entropy, (numbers(784), classes(10))


class FakeQuantized(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.scale = nn.Parameter(torch.full((), 0.02))

    def forward(self, x: Tensor) -> Tensor:
        level = (self.weight / self.scale).clamp(-8, 7)
        rounded = level + (level.round() - level).detach()
        return F.linear(x, rounded * self.scale, self.bias)


def quantized() -> Case:
    """Learned step size quantization (LSQ)"""
    model = nn.Sequential(FakeQuantized(784, 512), nn.ReLU(), FakeQuantized(512, 10))
    return model, cross_entropy, (numbers(784), classes(10))


MODELS = (
    autocast, autocast_transformer, bfloat16, float64, channels_last, binary_network, quantized,
)  # fmt: skip
