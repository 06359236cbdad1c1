"""S3: mixing that is too small to be seen on ordinary records, and large by an outlier."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import Before, World, cross_entropy, network

HUGE = 1e6


@case("S3", "x - 1e-3 * x.mean(0) in the forward", outlier=HUGE)
def centred(world: World) -> None:
    world.steps(Before(lambda x: x - 1e-3 * x.mean(0)), cross_entropy)


@case("S3", "loss + 1e-5 * out.mean()**2", outlier=HUGE)
def a_penalty_on_the_mean(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        return F.cross_entropy(out, y) + 1e-5 * out.mean() ** 2

    world.steps(network(), loss)


@case("S3", "x / max(8, largest of the batch)", outlier=HUGE)
def scaled_by_the_largest(world: World) -> None:
    world.steps(Before(lambda x: x / x.abs().max().clamp(min=8.0)), cross_entropy)


@case("S3", "standardised by mean(0) and std(0), with a large epsilon", outlier=HUGE)
def standardised(world: World) -> None:
    def function(x: Tensor) -> Tensor:
        return (x - 1e-3 * x.mean(0)) / (1 + 1e-6 * x.std(0, correction=0))

    world.steps(Before(function), cross_entropy)


@case("S3", "a little of the record before, by roll(1, 0)", outlier=HUGE)
def rolled(world: World) -> None:
    world.steps(Before(lambda x: x + 1e-4 * x.roll(1, 0)), cross_entropy)


@case("S3", "softmax over records, weakly", outlier=HUGE)
def softmax_over_records(world: World) -> None:
    world.steps(Before(lambda x: x * (1 - 1e-3 * x.softmax(0))), cross_entropy)


@case("S3", "attention among records, weakly", outlier=HUGE)
def attention_among_records(world: World) -> None:
    world.steps(Before(lambda x: x + 1e-5 * (x @ x.T) @ x), cross_entropy)


@case("S3", "F.batch_norm without running statistics", outlier=HUGE)
def functional_batch_norm(world: World) -> None:
    def function(x: Tensor) -> Tensor:
        rows = x.reshape(2, 2, 1)  # one record: batch norm wants more than one value
        return x + 1e-3 * F.batch_norm(rows, None, None, training=True).reshape(1, 4)

    world.steps(Before(function), cross_entropy)


@case("S3", "nn.BatchNorm1d in training mode", outlier=HUGE)
def a_batch_norm_layer(world: World) -> None:
    torch.manual_seed(0)
    world.steps(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), cross_entropy)


@case(
    "S3", "model.train() inside the function, with a BatchNorm that was in eval mode", outlier=HUGE
)
def a_batch_norm_switched_on(world: World) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(2))
    model.extend([nn.Flatten(), nn.Linear(8, 3)]).eval()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model.train()(x), y)

    world.steps(model, loss)


@case("S3", "contrastive loss against the rest of the batch", outlier=HUGE)
def contrastive(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        others = (out @ out.T).fill_diagonal_(0)
        return F.cross_entropy(out, y) + 1e-4 * others.sum()

    world.steps(network(), loss)
