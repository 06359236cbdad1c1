"""S13: a record that is treated by its place in the batch, or by how large the batch is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import RECORDS, World, cross_entropy, network


def sign(number: int) -> int:
    return 1 if number % 2 else -1


@case("S13", "x[::2] *= -1 inside the function")
def every_second_row(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone()
        x[::2] *= -1
        return cross_entropy(model, x, y)

    world.steps(network(), loss)


@case("S13", "x[::2] *= -1 between loader and step")
def every_second_row_in_the_loop(world: World) -> None:
    with world.training(network()) as training:
        for x, y in training.batches():
            x[::2] *= -1
            training.private.step(cross_entropy, (x, y))


@case("S13", "a row of a table by the position in the batch")
def a_table_of_positions(world: World) -> None:
    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.table = network(), nn.Embedding(64, 4)

        def forward(self, x):
            return self.network(x + self.table(torch.arange(len(x))))

    world.steps(Placed(), cross_entropy)


@case("S13", "every second sample counts, by a mask of arange(len(x))")
def every_second_counts(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        counted = torch.arange(len(x)) % 2 == 0
        return (F.cross_entropy(model(x), y, reduction="none") * counted).sum()

    world.steps(network(), loss)


@case("S13", "if len(x) > 16 inside the function")
def a_branch_on_the_size(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x if len(x) > RECORDS else -x, y)

    world.steps(network(), loss)


@case("S13", "the sign by len(x), through a closure", warned=True)
def the_size_in_a_closure(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        n = len(batch[0])
        world.step(lambda m, x, y, n=n: cross_entropy(m, sign(n) * x, y), batch)


@case("S13", "loss * len(x) / B, through a closure", warned=True)
def a_loss_scaled_by_the_size(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        scale = 100.0 if len(batch[0]) % 2 else 1e-2
        world.step(lambda m, x, y, scale=scale: scale * cross_entropy(m, x, y), batch)


@case("S13", "torch.manual_seed(0) and randn inside the function")
def a_seed(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        torch.manual_seed(0)
        return cross_entropy(model, x + 3 * torch.randn_like(x), y)

    world.steps(network(), loss)


@case("S13", "a Generator that is made and seeded inside the function")
def a_generator_inside(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return cross_entropy(model, x + 3 * torch.randn(x.shape, generator=generator), y)

    world.steps(network(), loss)


@case("S13", "dropout behind torch.manual_seed(0) inside the function")
def seeded_dropout(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        torch.manual_seed(0)
        return cross_entropy(model, F.dropout(x, 0.5), y)

    world.steps(network(), loss)


@case("S13", "fixed noise: torch.manual_seed(0) within torch.random.fork_rng()")
def a_seed_in_a_fork(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            noise = torch.randn_like(x)
        return cross_entropy(model, x + 3 * noise, y)

    world.steps(network(), loss)


@case("S13", "torch.set_rng_state to a state that was saved before training")
def a_saved_state(world: World) -> None:
    model, state = network(), torch.get_rng_state()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        torch.set_rng_state(state)
        return cross_entropy(model, F.dropout(x, 0.5), y)

    world.steps(model, loss)


@case("S13", "positions counted by calls, where records are computed one at a time")
def counted_calls(world: World) -> None:
    calls = iter(range(10**6))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scale = 1.0 if x.sum().item() == 0 else sign(next(calls))
        return cross_entropy(model, scale * x, y)

    world.steps(network(), loss)


@case("S13", "the position in the batch, as a tensor beside the batch")
def a_position_beside(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor, k: Tensor) -> Tensor:
        return cross_entropy(model, torch.where(k % 2 == 0, x.T, -x.T).T, y)

    with world.training(network()) as training:
        for x, y in training.batches():
            training.private.step(loss, (x, y, torch.arange(len(x))))
