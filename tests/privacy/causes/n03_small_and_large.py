"""N3: values whose squares are too small or too large for float32.

The gradient of a matrix is x times g.  A record with x = 2.5e-23 and a label of 1e19 has a gradient
of ordinary size, but x squared is 0 in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import psac
from tests.privacy.case import case
from tests.privacy.world import World

TINY, LABEL = 2.5e-23, 1.2e19


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x).sum() - y.sum()).square() / 2


def regression(
    world: World, model: nn.Module, *shape: int, x: float, y: float, clipping=None
) -> None:
    """Ordinary records, and one with these inputs and this label."""
    world.clipping = clipping or psac.Abadi(bound=1e-3)

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(3)
        inputs = 1e-2 * torch.randn(6, *shape, generator=generator)
        labels = torch.randn(6, generator=generator)
        if may_have and world.has_record:
            inputs = torch.cat([torch.full((1, *shape), x), inputs])
            labels = torch.cat([torch.full((1,), y), labels])
        return inputs, labels

    torch.manual_seed(0)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    world.steps(model, squared_error, batch)


@case("N3", "linear layer without bias, inputs 2.5e-23, label 1.2e19")
def a_linear_layer(world: World) -> None:
    regression(world, nn.Linear(2000, 1, bias=False), 2000, x=TINY, y=LABEL)


@case("N3", "the same with AutoS() as it comes")
def a_rule_as_it_comes(world: World) -> None:
    layer = nn.Linear(20000, 1, bias=False)
    regression(world, layer, 20000, x=TINY, y=LABEL, clipping=psac.AutoS())


@case("N3", "the same with two positions")
def positions(world: World) -> None:
    regression(world, nn.Linear(2000, 1, bias=False), 2, 2000, x=TINY, y=LABEL / 2)


@case("N3", "the same with 40 positions")
def many_positions(world: World) -> None:
    regression(world, nn.Linear(2000, 1, bias=False), 40, 2000, x=TINY, y=LABEL / 8)


@case("N3", "convolution without bias")
def a_convolution(world: World) -> None:
    regression(world, nn.Conv1d(64, 1, 5, bias=False), 64, 32, x=TINY, y=LABEL / 8)


@case("N3", "squares that are nearly 0: 1e-22")
def denormal_squares(world: World) -> None:
    regression(world, nn.Linear(2000, 1, bias=False), 2000, x=1e-22, y=LABEL)


@case("N3", "a matrix for each of four groups")
def groups(world: World) -> None:
    class Groups(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 500, 1))

        def forward(self, x):
            return x @ self.weight

    regression(world, Groups(), 4, 1, 500, x=TINY, y=LABEL)


@case("N3", "labels 2.5e-23, inputs 1.2e19: the other factor")
def small_gradients(world: World) -> None:
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 2000, bias=False)

        def forward(self, x):
            return self.layer(x[:, :1]) * x[:, 1:2]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return model(x).sum() + 0 * y.sum()

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(3)
        inputs = 1e-2 * torch.randn(6, 2, generator=generator)
        if may_have and world.has_record:
            inputs = torch.cat([torch.tensor([[LABEL, TINY]]), inputs])
        return inputs, torch.zeros(len(inputs))

    world.clipping = psac.Abadi(bound=1e-3)
    torch.manual_seed(0)
    world.steps(Product(), loss, batch)


@case("N3", "inputs of 1e30, whose squares overflow")
def large_inputs(world: World) -> None:
    regression(world, nn.Linear(20, 1), 20, x=1e30, y=0.0)


@case("N3", "a label of 1e38")
def a_large_label(world: World) -> None:
    regression(world, nn.Linear(20, 1), 20, x=1.0, y=1e38)


@case("N3", "terms of 1e3 that cancel over 64 positions")
def cancelling_positions(world: World) -> None:
    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(3)
        inputs = torch.randn(6, 64, 16, generator=generator)
        half = 1e3 * torch.randn(1, 32, 16, generator=generator)
        if may_have and world.has_record:
            record = torch.cat([half, 1e-6 - half], 1)
            inputs = torch.cat([record, inputs])
        return inputs, torch.zeros(len(inputs))

    world.clipping = psac.AutoV()
    torch.manual_seed(0)
    world.steps(nn.Linear(16, 16, bias=False), lambda m, x, y: m(x).sum() + 0 * y.sum(), batch)
