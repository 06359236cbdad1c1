"""N5: a function that writes to its own arguments.

Writing to one's own record is innocent; but psac calls the function more than once for a batch it
has not seen, and again for the finite records of a batch with others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


def after(write):
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        write(x)
        return cross_entropy(model, x, y)

    return loss


@case("N5", "x.neg_()")
def negated(world: World) -> None:
    world.steps(network(), after(lambda x: x.neg_()))


@case("N5", "x.neg_(), with a NaN record", outlier=math.nan)
def negated_beside_nan(world: World) -> None:
    world.steps(network(), after(lambda x: x.neg_()))


@case("N5", "x.div_(2).add_(1), with a NaN record", outlier=math.nan)
def scaled_beside_nan(world: World) -> None:
    world.steps(network(), after(lambda x: x.div_(2).add_(1)))


@case("N5", "x.clamp_(-1, 1), which changes nothing the second time", outlier=math.nan)
def clamped(world: World) -> None:
    world.steps(network(), after(lambda x: x.clamp_(-1, 1)))


@case("N5", "features exchanged in place", outlier=math.nan)
def exchanged(world: World) -> None:
    world.steps(network(), after(lambda x: x.copy_(x.flip(-1))))


@case("N5", "x.neg_(), where records are computed one at a time")
def negated_alone(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x.neg_()
        return cross_entropy(model, x * (1 if x.mean() < 10 else 2), y)

    world.steps(network(), loss)


@case("N5", "an entry of a tensor from outside, counted in place")
def a_counter(world: World) -> None:
    counts = torch.zeros(3)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        counts[y] += 1
        return cross_entropy(model, x * (1 + counts.max()), y)

    world.steps(network(), loss)
