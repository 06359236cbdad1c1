"""N9: values that are not finite, huge, tiny or rounded, in other places than the inputs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


def regression(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    return (model(x).sum(1) - t).square().sum()


def targets(world: World, value: float, model: nn.Module, loss=regression) -> None:
    """The record differs from others by its target alone."""

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        x, _ = world.batch(may_have)
        x = x.clamp(-3, 3)
        t = torch.zeros(len(x))
        if may_have and world.has_record:
            t[0] = value
        return x, t

    world.steps(model, loss, batch)


@case("N9", "a NaN target")
def a_nan_target(world: World) -> None:
    targets(world, math.nan, network())


@case("N9", "an infinite target")
def an_infinite_target(world: World) -> None:
    targets(world, math.inf, network())


@case("N9", "an infinite loss whose gradient is finite")
def an_infinite_loss(world: World) -> None:
    targets(world, math.inf, network(), lambda m, x, t: regression(m, x, 0 * t.clamp(0, 1)) + t)


@case("N9", "a finite loss whose gradient is NaN: the root of 0")
def a_nan_gradient(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return ((1 - t) * m(x).square().sum()).sqrt().sum()

    targets(world, 1.0, network(), loss)


@case("N9", "a target of 1e30: norms whose squares overflow")
def a_huge_target(world: World) -> None:
    targets(world, 1e30, network())


@case("N9", "a target of 1e18, beside targets of 1")
def a_large_target(world: World) -> None:
    targets(world, 1e18, network())


@case("N9", "a target of 1e-30: a record of nearly no gradient")
def a_tiny_target(world: World) -> None:
    targets(world, 1e-30, network(), lambda m, x, t: (m(x).sum() * t).sum())


@case("N9", "a target of 3e4 in float16")
def half(world: World) -> None:
    targets(world, 3e4, network().half(), lambda m, x, t: (m(x.half()).sum() * t).float().sum())


@case("N9", "a target of 1e38 in bfloat16")
def brain_half(world: World) -> None:
    loss = lambda m, x, t: (m(x.bfloat16()).float().sum() * t).sum()  # noqa: E731
    targets(world, 1e38, network().bfloat16(), loss)


@case("N9", "a target of 1e200 in float64")
def double(world: World) -> None:
    loss = lambda m, x, t: (m(x.double()).sum() * t.double() * 1e170).sum()  # noqa: E731
    targets(world, 1e30, network().double(), loss)


@case("N9", "a label that is ignored: the mean over no token")
def an_ignored_label(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(m(x), torch.where(t > 0, -100, 0).long())

    targets(world, 1.0, network(), loss)


@case("N9", "log of 0 behind torch.where")
def a_masked_log(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        p = m(x).sum(1).square() * (1 - t)
        return torch.where(p > 0, p.log(), 0.0).sum()

    targets(world, 1.0, network(), loss)


@case("N9", "all gradients 0 but the record's")
def zeros(world: World) -> None:
    targets(world, 5.0, network(), lambda m, x, t: (m(x).sum() * t).sum())


@case("N9", "two groups, in one of which the record is not finite")
def two_layers(world: World) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.scale = network(), nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x)

    def loss(m: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return m(x).square().sum() + (m.scale * t).sum()

    targets(world, math.inf, Two(), loss)


@case("N9", "a record that is infinite where vmap refuses, too", outlier=math.inf)
def alone_and_infinite(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value = cross_entropy(m, x, y)
        return value if value.item() < 1e9 else 2 * value

    world.steps(network(), loss)


@case("N9", "an index out of range, for one record", stops=IndexError)
def out_of_range(world: World) -> None:
    table = nn.Embedding(4, 3)
    targets(world, 9.0, table, lambda m, x, t: m(t.long()).square().sum())
