"""S2: no 1/n in any graph, in no precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import psac
from tests.privacy.case import Impossible, case
from tests.privacy.world import CLASSES, World, cross_entropy, network


def in_half(kind: torch.dtype):
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x.to(kind)), y)

    return loss


@case("S2", "bfloat16 model, mean loss", outlier=3.0)
def bfloat16(world: World) -> None:
    world.steps(network().bfloat16(), in_half(torch.bfloat16))


@case("S2", "float16 model, mean loss", outlier=3.0)
def float16(world: World) -> None:
    world.steps(network().half(), in_half(torch.float16))


@case("S2", "autocast inside the function", outlier=3.0)
def autocast_inside(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(x), y)

    world.steps(network(), loss)


@case("S2", "autocast around the step", outlier=3.0)
def autocast_around(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            world.step(cross_entropy, batch)


@case("S2", "bfloat16 convolution and group norm", outlier=3.0)
def a_convolution(world: World) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv1d(2, 6, 2), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(18, CLASSES)]
    model = nn.Sequential(nn.Unflatten(1, (2, 4)), *layers).bfloat16()
    values = lambda may_have: (  # noqa: E731
        world.inputs(8, may_have=may_have).bfloat16(),
        world.labels(may_have=may_have),
    )
    world.steps(model, cross_entropy, values)


@case("S2", "bfloat16, the loss divided by a number of 1/n's size", outlier=3.0)
def a_scaled_loss(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x.bfloat16()), y) / 4096

    world.steps(network().bfloat16(), loss)


@case("S2", "a mean over tokens, of which each record has its own number", outlier=3.0)
def a_mean_over_tokens(world: World) -> None:
    torch.manual_seed(0)
    model = nn.Linear(1, CLASSES).bfloat16()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        targets = torch.where(x[0] > 0, y, -100)
        return F.cross_entropy(model(x[0].bfloat16().unsqueeze(-1)), targets, ignore_index=-100)

    world.steps(model, loss)


@case("S2", "loss_reduction='mean' of a batched loss", outlier=3.0)
def a_batched_mean(world: World) -> None:
    if hasattr(psac, "Engine"):
        raise AssertionError("the free loop is back")
    raise Impossible("psac calls the function for one record; there is no loss of a batch")
