"""N4: errors and branches that depend on a record."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


def refusing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    if x.max() > 100:
        raise ValueError("an outlier")
    return cross_entropy(model, x, y)


@case("N4", "a loss that raises for one record; the loop goes on with another loss")
def another_loss(world: World) -> None:
    with world.training(network()) as training:
        for batch in training.batches():
            try:
                training.private.step(refusing, batch)
            except ValueError:
                training.private.step(lambda m, x, y: cross_entropy(m, -x, y), batch)


@case("N4", "the same, and the loop leaves the batch out")
def a_batch_left_out(world: World) -> None:
    with world.training(network()) as training:
        for batch in training.batches():
            try:
                training.private.step(refusing, batch)
            except ValueError:
                continue


@case("N4", "the loop is left and begun anew until a batch is liked")
def chosen_batches(world: World) -> None:
    with world.training(network(), steps=2) as training:
        private = training.private
        for _ in range(3):
            for _ in private.loader:
                break  # not liked
        for batch in training.batches():
            private.step(cross_entropy, batch)


@case("N4", "a branch on the value: if x.mean() > 10")
def a_branch(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x / 1e3 if x.mean() > 10 else x, y)

    world.steps(network(), loss)


@case("N4", "some records have no loss: a constant is returned")
def constants(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return torch.zeros(()) if x.mean() > 10 else cross_entropy(model, x, y)

    world.steps(network(), loss)


@case("N4", "another number of layers for some records")
def other_operations(world: World) -> None:
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            for _ in range(1 if x.mean() < 10 else 5):
                x = self.inner(x).tanh()
            return self.head(x)

    world.steps(Deep(), cross_entropy)


@case("N4", "another dtype for some records")
def another_dtype(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value = cross_entropy(model, x, y)
        return value.double() if x.mean() > 10 else value

    world.steps(network(), loss)


@case("N4", "try and except around what vmap refuses")
def caught(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        try:
            scale = x.mean().item()
        except RuntimeError:
            scale = 0.0
        return cross_entropy(model, x - scale, y)

    world.steps(network(), loss)


@case("N4", "a loss for every record of the batch, [B]")
def many_losses(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    world.steps(network(), loss)


@case("N4", "a constant loss")
def a_constant(world: World) -> None:
    world.steps(network(), lambda m, x, y: torch.zeros(()))


@case(
    "N4",
    "cholesky of a matrix that is singular for one record",
    outlier=0.0,
    stops=torch.linalg.LinAlgError,
)
def a_singular_matrix(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        square = x.T @ x + torch.diag_embed(x[0].abs())
        return cross_entropy(model, x, y) + torch.linalg.cholesky(square).sum() * 0.01

    world.steps(network(), loss)


@case("N4", "anomaly detection around the step, a NaN record", outlier=float("nan"))
def anomalies(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        with torch.autograd.detect_anomaly(check_nan=False):
            world.step(cross_entropy, batch)
