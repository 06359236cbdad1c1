"""S10: as many positions, channels, heads or classes as there are records."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import CLASSES, RECORDS, World

T = RECORDS + 1  # as many as the batch has with the record


class Sequence(nn.Module):
    """A layer over [1, T, channels], and a linear head on its mean."""

    def __init__(self, make, channels: int = 3, out: int = 4):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = make(), nn.Linear(out, CLASSES)
        self.channels = channels

    def forward(self, x):
        return self.head(self.outputs(x).mean(1))

    def outputs(self, x):
        given = self.layer(x)
        return given[0] if isinstance(given, tuple) else given


def sequences(world: World, model: nn.Module, channels: int = 3, outlier: float = 50.0) -> None:
    world.outlier = outlier

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        n = RECORDS if may_have else T
        return (
            world.inputs(T, channels, may_have=may_have, seed=1 + may_have, n=n),
            world.labels(may_have=may_have, seed=1 + may_have, n=n),
        )

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    world.steps(model, loss, batch)


@case("S10", "linear layer on as many positions as records")
def linear(world: World) -> None:
    sequences(world, Sequence(lambda: nn.Linear(3, 4)))


@case("S10", "LSTM with as many steps as records")
def lstm(world: World) -> None:
    sequences(world, Sequence(lambda: nn.LSTM(3, 4, batch_first=True)))


@case("S10", "LSTM that takes time first, and is given records first")
def lstm_with_time_first(world: World) -> None:
    sequences(world, Sequence(lambda: nn.LSTM(3, 4)))


@case("S10", "GRU, bidirectional, as many steps as records")
def gru(world: World) -> None:
    sequences(world, Sequence(lambda: nn.GRU(3, 2, batch_first=True, bidirectional=True)))


@case("S10", "multi-head attention, batch_first=False")
def attention(world: World) -> None:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.MultiheadAttention(4, 2)

        def forward(self, x):
            x = x.transpose(0, 1)
            return self.layer(x, x, x)[0].transpose(0, 1)

    sequences(world, Sequence(Attention), channels=4)


@case("S10", "convolution with as many channels as records")
def convolution(world: World) -> None:
    sequences(world, Sequence(lambda: nn.Conv1d(T, T, 3, padding=1), out=3))


@case("S10", "layer norm over as many features as records")
def layer_norm(world: World) -> None:
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(T)

        def forward(self, x):
            return self.norm(x.transpose(1, 2)).transpose(1, 2)

    sequences(world, Sequence(Normed, out=3))


@case("S10", "a learned position for each of as many positions as records")
def positions(world: World) -> None:
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(T, 3)

        def forward(self, x):
            return x + self.table(torch.arange(T))

    sequences(world, Sequence(Positions, out=3))


@case("S10", "as many classes as records")
def classes(world: World) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(T * 3, T))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y * 5)

    world.outlier = 50.0
    world.steps(
        model,
        loss,
        lambda may_have: (
            world.inputs(T, 3, may_have=may_have),
            world.labels(may_have=may_have),
        ),
    )


@case("S10", "a matrix of weights [records, features], multiplied from the left")
def from_the_left(world: World) -> None:
    class Left(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(T, T) / T)

        def forward(self, x):
            return self.weight @ x

    sequences(world, Sequence(Left, out=3))
