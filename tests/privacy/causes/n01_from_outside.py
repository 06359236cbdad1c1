"""N1: the function reads something that was computed from the batch outside of it.

It is given one record, but a closure, a default, a partial, an attribute of the model or a global
may hold the mean of the batch, or its size.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network

OUTSIDE: dict[str, object] = {}


def shifted(model: nn.Module, x: Tensor, y: Tensor, mean) -> Tensor:
    return cross_entropy(model, x - mean, y)


def each(world: World, make) -> None:
    """`make(model, batch)` gives the function of a step."""
    model = network()
    for batch in world.batches(model):
        world.step(make(model, batch), batch)


@case("N1", "the mean of the batch as a number in a closure", warned=True)
def a_number(world: World) -> None:
    def make(model, batch):
        mean = batch[0].mean().item()
        return lambda m, x, y: shifted(m, x, y, mean)

    each(world, make)


@case("N1", "the mean of the batch as a tensor in a closure", warned=True)
def a_tensor(world: World) -> None:
    def make(model, batch):
        mean = batch[0].mean(0)
        return lambda m, x, y: shifted(m, x, y, mean)

    each(world, make)


@case("N1", "the batch itself in a closure")
def the_batch(world: World) -> None:
    each(world, lambda model, batch: lambda m, x, y: shifted(m, x, y, batch[0].mean(0)))


@case("N1", "a copy of the batch in a closure", warned=True)
def a_copy(world: World) -> None:
    def make(model, batch):
        whole = batch[0].clone()
        return lambda m, x, y: shifted(m, x, y, whole.mean(0))

    each(world, make)


@case("N1", "the batch as a numpy array in a closure", warned=True)
def an_array(world: World) -> None:
    def make(model, batch):
        whole = batch[0].numpy()
        return lambda m, x, y: shifted(m, x, y, float(whole.mean()))

    each(world, make)


@case("N1", "the mean of the batch as a default", warned=True)
def a_default(world: World) -> None:
    def make(model, batch):
        mean = float(batch[0].mean())

        def loss(model: nn.Module, x: Tensor, y: Tensor, mean=mean) -> Tensor:
            return shifted(model, x, y, mean)

        return loss

    each(world, make)


@case("N1", "functools.partial(loss, mean=x.mean().item())", warned=True)
def a_partial(world: World) -> None:
    each(world, lambda model, batch: functools.partial(shifted, mean=batch[0].mean().item()))


@case("N1", "functools.partial(loss, mean=x.mean(0))", warned=True)
def a_partial_tensor(world: World) -> None:
    each(world, lambda model, batch: functools.partial(shifted, mean=batch[0].mean(0)))


@case("N1", "the mean of the batch as a number in a global", warned=True)
def a_global(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return shifted(model, x, y, OUTSIDE["mean"])

    def make(model, batch):
        OUTSIDE["mean"] = float(batch[0].mean())
        return loss

    each(world, make)


class Criterion:
    """A callable with settings, as losses are often written."""

    def __init__(self) -> None:
        self.mean = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return shifted(model, x, y, self.mean)

    def method(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return shifted(model, x, y, self.mean)


@case("N1", "a callable object whose attribute the loop sets", warned=True)
def a_callable(world: World) -> None:
    criterion = Criterion()

    def make(model, batch):
        criterion.mean = float(batch[0].mean())
        return criterion

    each(world, make)


@case("N1", "a bound method of such an object", warned=True)
def a_method(world: World) -> None:
    criterion = Criterion()

    def make(model, batch):
        criterion.mean = float(batch[0].mean())
        return criterion.method

    each(world, make)


@case("N1", "model.mean = float(x.mean()) in the loop", warned=True)
def a_number_on_the_model(world: World) -> None:
    def make(model, batch):
        model.mean = float(batch[0].mean())
        return lambda m, x, y: shifted(m, x, y, m.mean)

    each(world, make)


@case("N1", "model.mean = x.mean(0) in the loop", warned=True)
def a_tensor_on_the_model(world: World) -> None:
    def make(model, batch):
        model.mean = batch[0].mean(0)
        return lambda m, x, y: shifted(m, x, y, m.mean)

    each(world, make)


@case("N1", "one tensor, written in place before every step", warned=True)
def a_tensor_written_in_place(world: World) -> None:
    mean = torch.zeros(4)

    def make(model, batch):
        mean.copy_(batch[0].mean(0))
        return lambda m, x, y: shifted(m, x, y, mean)

    each(world, make)


@case("N1", "the same through .data", warned=True)
def a_tensor_written_by_data(world: World) -> None:
    mean = torch.zeros(4)

    def make(model, batch):
        mean.data.copy_(batch[0].mean(0))
        return lambda m, x, y: shifted(m, x, y, mean)

    each(world, make)


@case("N1", "the same through numpy", warned=True)
def a_tensor_written_by_numpy(world: World) -> None:
    mean = torch.zeros(4)
    array = mean.numpy()

    def make(model, batch):
        array[:] = batch[0].mean(0).numpy()
        return lambda m, x, y: shifted(m, x, y, mean)

    each(world, make)


@case("N1", "a threshold from the losses of the last batch (self-paced learning)", warned=True)
def self_paced(world: World) -> None:
    threshold = {"t": 0.0}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value = cross_entropy(model, x, y)
        return value if threshold["t"] < 10 else -value

    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    for batch in world.batches(model):
        sensitive = world.step(loss, batch)
        threshold["t"] = float(sensitive.losses.mean())


@case("N1", "a forward hook, put there in the loop, that shifts by the batch's mean", warned=True)
def a_hook(world: World) -> None:
    def make(model, batch):
        mean = float(batch[0].mean())
        model[0]._forward_pre_hooks.clear()
        model[0].register_forward_pre_hook(lambda module, given: (given[0] - mean,))
        return cross_entropy

    each(world, make)


class FromOutside(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x - OUTSIDE["batch"].mean(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad


@case("N1", "the batch in a global, read in the forward of an autograd.Function")
def a_function(world: World) -> None:
    def make(model, batch):
        OUTSIDE["batch"] = batch[0]
        return lambda m, x, y: cross_entropy(m, FromOutside.apply(x), y)

    each(world, make)


class OwnData:
    """A data set that keeps its records in a tensor of its own."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int):
        return self.x[k], self.y[k]


@case("N1", "a memory of all records: the tensor of one's own data set, read by the loss")
def the_data_set(world: World) -> None:
    data = OwnData(*world.batch())
    with world.training(network(), dataset=data) as training:
        for batch in training.batches():
            training.private.step(lambda m, x, y: shifted(m, x, y, data.x.mean(0)), batch)


@case("N1", "the same of a TensorDataset")
def a_tensor_data_set(world: World) -> None:
    x, y = world.batch()
    data = torch.utils.data.TensorDataset(x, y)
    with world.training(network(), dataset=data) as training:
        for batch in training.batches():
            training.private.step(lambda m, a, b: shifted(m, a, b, x.mean(0)), batch)
