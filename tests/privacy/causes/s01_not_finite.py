"""S1: a record with NaN or inf adds zero, and leaves the others as they were.

The two hundred operations of `tests/privacy/operations.py` are the same question asked of each.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import CLASSES, FEATURES, World, cross_entropy, network

NAN, INF = math.nan, math.inf


class WithParameter(nn.Module):
    """An operation of a parameter and the features, and a linear layer behind it."""

    def __init__(self, function, *shape):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.rand(*shape) + 0.5)
        self.head, self.function = nn.Linear(FEATURES, CLASSES), function

    def forward(self, x):
        return self.head(self.function(x, self.weight))


@case("S1", "plain network, a NaN record", outlier=NAN)
def a_network(world: World) -> None:
    world.steps(network(), cross_entropy)


@case("S1", "LSTM over the features, a NaN record", outlier=NAN)
def an_lstm(world: World) -> None:
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.head = nn.LSTM(1, 5, batch_first=True), nn.Linear(5, CLASSES)

        def forward(self, x):
            return self.head(self.layer(x.unsqueeze(-1))[0][:, -1])

    world.steps(Recurrent(), cross_entropy)


@case("S1", "nn.Bilinear, an infinite record", outlier=INF)
def a_bilinear_layer(world: World) -> None:
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Bilinear(FEATURES, FEATURES, CLASSES)

        def forward(self, x):
            return self.layer(x, x)

    world.steps(Pairs(), cross_entropy)


@case("S1", "nn.PReLU, a NaN record", outlier=NAN)
def a_prelu(world: World) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 6), nn.PReLU(6), nn.Linear(6, CLASSES))
    world.steps(model, cross_entropy)


@case("S1", "x.abs() ** weight, a NaN record", outlier=NAN)
def a_power(world: World) -> None:
    world.steps(WithParameter(lambda x, w: x.abs() ** w, FEATURES), cross_entropy)


@case("S1", "x / weight, an infinite record", outlier=INF)
def a_quotient(world: World) -> None:
    world.steps(WithParameter(lambda x, w: x / w, FEATURES), cross_entropy)


@case("S1", "torch.cdist to learned centres, a record of 1e20", outlier=1e20)
def distances(world: World) -> None:
    world.steps(WithParameter(torch.cdist, FEATURES, FEATURES), cross_entropy)


@case("S1", "torch.lerp and addcmul with weights, a NaN record", outlier=NAN)
def interpolation(world: World) -> None:
    def function(x, w):
        return torch.addcmul(torch.lerp(x, w.expand_as(x), 0.3), x, w.expand_as(x))

    world.steps(WithParameter(function, FEATURES), cross_entropy)


@case("S1", "torch.linalg.solve with a learned matrix, a NaN record", outlier=NAN)
def a_linear_system(world: World) -> None:
    def function(x, w):
        return torch.linalg.solve(w + 4 * torch.eye(FEATURES), x.unsqueeze(-1)).squeeze(-1)

    world.steps(WithParameter(function, FEATURES, FEATURES), cross_entropy)


@case("S1", "weighted nn.EmbeddingBag, NaN weights", outlier=NAN)
def a_weighted_bag(world: World) -> None:
    torch.manual_seed(0)
    model = nn.EmbeddingBag(9, CLASSES, mode="sum")

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        index = torch.arange(FEATURES).expand(1, -1)
        return F.cross_entropy(model(index, per_sample_weights=x), y)

    world.steps(model, loss)


@case("S1", "autograd.Function with generate_vmap_rule, a NaN record", outlier=NAN)
def a_custom_function(world: World) -> None:
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, w):
            return x**3 * w

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad * 3 * x**2 * w, (grad * x**3).sum(0)

    world.steps(WithParameter(Cube.apply, FEATURES), cross_entropy)


@case("S1", "a mask hides the NaN from the loss, not from the gradient", outlier=NAN)
def a_hidden_nan(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        values = F.cross_entropy(model(x), y, reduction="none")
        return torch.where(values.isnan(), 0.0, values).sum()

    world.steps(network(), loss)


@case("S1", "the function runs alone, a NaN record", outlier=NAN)
def a_branch(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x if x.mean() > 0 else 2 * x, y)

    world.steps(network(), loss)


@case("S1", "all weights overflow in float16, an ordinary outlier", outlier=6e4)
def an_overflow_in_half_precision(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x.half()), y)

    world.steps(network().half(), loss)
