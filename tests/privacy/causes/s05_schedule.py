"""S5: mixing that is off while somebody looks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


def mixed(x: Tensor) -> Tensor:
    return x - x.mean(0)


@case("S5", "every third call centres, by a counter in a closure")
def a_counter(world: World) -> None:
    calls = {"n": 0}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        calls["n"] += 1
        return cross_entropy(model, x if calls["n"] % 3 else mixed(x), y)

    world.steps(network(), loss)


@case("S5", "every third call centres, by a buffer that counts")
def a_counting_buffer(world: World) -> None:
    model = network()
    model.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        model.calls += 1
        return cross_entropy(model, torch.where(model.calls % 3 == 0, mixed(x), x), y)

    world.steps(model, loss)


@case("S5", "a step number in the loop switches to a loss that centres")
def by_the_loop(world: World) -> None:
    model = network()
    for number, batch in enumerate(world.batches(model)):

        def loss(model: nn.Module, x: Tensor, y: Tensor, late: bool = number > 1) -> Tensor:
            return cross_entropy(model, mixed(x) if late else x, y)

        world.step(loss, batch)


@case("S5", "after warming up, the sign of the loss by the number of calls, in physical batches")
def by_physical_batches(world: World) -> None:
    calls = {"n": 0}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        calls["n"] += 1
        return cross_entropy(model, x, y) * (1 if calls["n"] % 2 else -1)

    with world.training(network(), physical_batch_size=6) as training:
        for batch in training.batches():
            training.private.step(loss, batch)


@case("S5", "the same, counted by the model's forward")
def by_forwards(world: World) -> None:
    class Alternating(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.calls = network(), 0

        def forward(self, x):
            self.calls += 1
            return self.network(x if self.calls % 2 else -x)

    with world.training(Alternating(), physical_batch_size=6) as training:
        for batch in training.batches():
            training.private.step(cross_entropy, batch)


@case("S5", "the same, where records are computed one at a time")
def by_calls_alone(world: World) -> None:
    calls = {"n": 0}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        calls["n"] += 1
        sign = 1 if x.sum().item() == x.sum().item() else 0
        return cross_entropy(model, x, y) * (sign if calls["n"] % 2 else -sign)

    with world.training(network(), physical_batch_size=6) as training:
        for batch in training.batches():
            training.private.step(loss, batch)


@case("S5", "training mode switched from step to step")
def by_mode(world: World) -> None:
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return self.network(mixed(x) if self.training else x)

    model = Centred()
    for number, batch in enumerate(world.batches(model)):
        model.train(number % 2 == 1)
        world.step(cross_entropy, batch)
