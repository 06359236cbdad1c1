"""S6: counts of records that are shapes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import CLASSES, World, cross_entropy, network


def scaled_by(count):
    """The loss, times what `count` says of the batch."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x, y) * count(x, y)

    return loss


@case("S6", "len(y[y > 0])")
def entries_of_a_mask(world: World) -> None:
    world.steps(network(), scaled_by(lambda x, y: len(y[y > 0])))


@case("S6", "x[x > 0].numel()")
def number_of_entries(world: World) -> None:
    world.steps(network(), scaled_by(lambda x, y: x[x > 0].numel() - 2.5))


@case("S6", "len(y.unique())")
def number_of_classes(world: World) -> None:
    world.steps(network(), scaled_by(lambda x, y: len(y.unique()) - 2))


@case("S6", "the mean over x[x > 0]")
def a_mean_of_some(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x - x[x > 0].sum(), y)

    world.steps(network(), loss)


@case("S6", "class weights from bincount")
def class_weights(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        counts = torch.bincount(y, minlength=CLASSES).float()
        return F.cross_entropy(model(x), y, weight=1 / (1 + counts))

    world.steps(network(), loss)


@case("S6", "only the hardest half, by topk over the batch")
def hard_examples(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(model(x), y, reduction="none")
        return losses.topk(max(1, len(losses) // 2)).values.mean()

    world.steps(network(), loss)


@case("S6", "x.nonzero() and (x > 2).sum().item()")
def places(world: World) -> None:
    world.steps(network(), scaled_by(lambda x, y: len(x.nonzero()) - (x > 2).sum().item()))


@case("S6", "x.shape[0] and y.size(0) as a divisor")
def a_divisor(world: World) -> None:
    world.steps(network(), scaled_by(lambda x, y: 4 / (x.shape[0] * y.size(0))))
