"""S8: mixing before the model, by what would strip a watch; and the same inside the function."""

from __future__ import annotations

import pickle
import re

import numpy as np
import torch
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


class Marked(torch.Tensor):
    """A subclass without meaning."""


def centre(x: Tensor) -> Tensor:
    return x - x.mean(0)


def scripted_centre(x: Tensor) -> Tensor:
    return torch.jit.script(centre)(x)


BEFORE = {
    "x - x.mean(0)": lambda x: x - x.mean(0),
    "torch.jit.script": scripted_centre,
    "torch.vmap over features": lambda x: torch.vmap(lambda c: c - c.mean(), 1, 1)(x),
    "as_subclass": lambda x: (x - x.mean(0)).as_subclass(Marked),
    "dlpack": lambda x: torch.utils.dlpack.from_dlpack(x - x.mean(0)),
    "set_": lambda x: torch.empty(0).set_(x - x.mean(0)),
    "pickle": lambda x: pickle.loads(pickle.dumps(x - x.mean(0))),
    "torch.tensor of a list": lambda x: torch.tensor((x - x.mean(0)).tolist()),
    "numpy": lambda x: torch.from_numpy(x.numpy() - np.mean(x.numpy(), 0)),
    "reordered": lambda x: x[torch.arange(len(x)).flip(0)],
    "a record twice": lambda x: torch.cat([x[:1], x[:-1]]),
}


def in_the_loop(name: str, function) -> None:
    def between(world: World) -> None:
        with world.training(network()) as training:
            for x, y in training.batches():
                training.private.step(cross_entropy, (function(x), y))

    between.__name__ = "_".join(["between", *re.findall(r"\w+", name)])
    case("S8", f"{name}, between loader and step")(between)


for _name, _function in BEFORE.items():
    in_the_loop(_name, _function)


@case("S8", "the batch sorted in place, column by column, between loader and step")
def sorted_in_place(world: World) -> None:
    with world.training(network()) as training:
        for x, y in training.batches():
            x.copy_(x.sort(0).values)
            training.private.step(cross_entropy, (x, y))


@case("S8", "labels sorted in place, the inputs not")
def labels_sorted_in_place(world: World) -> None:
    with world.training(network()) as training:
        for x, y in training.batches():
            y.copy_(y.sort().values)
            training.private.step(cross_entropy, (x, y))


@case("S8", "the inputs reversed in place, the labels not")
def reversed_in_place(world: World) -> None:
    with world.training(network()) as training:
        for x, y in training.batches():
            x.copy_(x.flip(0))
            training.private.step(cross_entropy, (x, y))


@case("S8", "a copy in which values below the mean of the batch are NaN, filled inside")
def replaced_by_nan(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x.nan_to_num(0.0), y)

    with world.training(network()) as training:
        for x, y in training.batches():
            training.private.step(loss, (torch.where(x < x.mean(0), torch.nan, x), y))


@case("S8", "a list of the batch's entries in another order, each a copy")
def exchanged_leaves(world: World) -> None:
    """Arranged in any way is allowed: rows stay with their record."""
    with world.training(network()) as training:
        for x, y in training.batches():
            training.private.step(
                lambda m, a, b, c: cross_entropy(m, a + b, c), (x.clone(), x, y.clone())
            )


@case("S8", "jit.script inside the function")
def scripted_inside(world: World) -> None:
    world.steps(network(), lambda m, x, y: cross_entropy(m, scripted_centre(x), y))


@case("S8", "as_subclass inside the function")
def subclass_inside(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.as_subclass(Marked)
        return cross_entropy(model, x - x.mean(0), y)

    world.steps(network(), loss)


@case("S8", "numpy and torch.tensor inside the function")
def numpy_inside(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        centred = x.numpy() - np.mean(x.numpy(), 0)
        return cross_entropy(model, torch.tensor(centred), y)

    world.steps(network(), loss)


@case("S8", "pickle inside the function")
def pickle_inside(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = pickle.loads(pickle.dumps(x))
        return cross_entropy(model, x - x.mean(0), y)

    world.steps(network(), loss)


@case("S8", "a collate_fn that centres the batch")
def a_collate_function(world: World) -> None:
    def collate(rows):
        x, y = torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])
        return x - x.mean(0), y

    data = torch.utils.data.TensorDataset(*world.batch())
    loader = torch.utils.data.DataLoader(data, batch_size=len(data), collate_fn=collate)
    with world.training(network(), dataset=loader) as training:
        for batch in training.batches():
            training.private.step(cross_entropy, batch)


@case("S8", "a collate_fn that scales by the largest entry, if it is above 8")
def a_rare_collate_function(world: World) -> None:
    def collate(rows):
        x, y = torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])
        return x / x.abs().max().clamp(min=8.0), y

    data = torch.utils.data.TensorDataset(*world.batch())
    loader = torch.utils.data.DataLoader(data, batch_size=len(data), collate_fn=collate)
    with world.training(network(), dataset=loader) as training:
        for batch in training.batches():
            training.private.step(cross_entropy, batch)


@case("S8", "mixup in the collate_fn")
def mixup(world: World) -> None:
    def collate(rows):
        x, y = torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])
        return 0.7 * x + 0.3 * x.roll(1, 0), y

    data = torch.utils.data.TensorDataset(*world.batch())
    loader = torch.utils.data.DataLoader(data, batch_size=len(data), collate_fn=collate)
    with world.training(network(), dataset=loader) as training:
        for batch in training.batches():
            training.private.step(cross_entropy, batch)
