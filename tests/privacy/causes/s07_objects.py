"""S7: a batch inside the user's own object, or behind an iterator."""

from __future__ import annotations

import dataclasses
import types

import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


class Bag:
    """As libraries of graphs and of ragged data have them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


@dataclasses.dataclass
class Fields:
    x: Tensor
    y: Tensor

    def centred(self) -> Tensor:
        return self.x - self.x.mean(0)


def of_bag(model: nn.Module, bag: Bag) -> Tensor:
    return F.cross_entropy(model(bag.x - bag.x.mean(0)), bag.y)


@case("S7", "an object of the user's own as the batch")
def an_object(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        world.step(of_bag, Bag(*batch))


@case("S7", "a SimpleNamespace as the batch")
def a_namespace(world: World) -> None:
    model = network()
    for x, y in world.batches(model):
        world.step(of_bag, types.SimpleNamespace(x=x, y=y))


@case("S7", "a dataclass whose method centres")
def a_dataclass(world: World) -> None:
    model = network()
    for x, y in world.batches(model):
        world.step(lambda m, fields: F.cross_entropy(m(fields.centred()), fields.y), Fields(x, y))


@case("S7", "an object of the batch inside a tuple")
def an_object_in_a_tuple(world: World) -> None:
    model = network()
    for x, y in world.batches(model):
        world.step(lambda m, x, y, bag: cross_entropy(m, x - bag.x.mean(0), y), (x, y, Bag(x, y)))


@case("S7", "an iterator over batches in the closure")
def an_iterator(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        others = iter([batch])

        def loss(model: nn.Module, x: Tensor, y: Tensor, others=others) -> Tensor:
            for whole, _ in others:
                x = x - whole.mean(0)
            return cross_entropy(model, x, y)

        world.step(loss, batch)


@case("S7", "a generator that yields values of the batch")
def a_generator(world: World) -> None:
    model = network()

    def values(x: Tensor):
        while True:
            yield float(x.mean())

    for batch in world.batches(model):
        means = values(batch[0])

        def loss(model: nn.Module, x: Tensor, y: Tensor, means=means) -> Tensor:
            return cross_entropy(model, x - next(means), y)

        world.step(loss, batch)


@case("S7", "an object that holds the batch, in the closure")
def an_object_in_the_closure(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        bag = Bag(*batch)

        def loss(model: nn.Module, x: Tensor, y: Tensor, bag=bag) -> Tensor:
            return cross_entropy(model, x - bag.x.mean(0), y)

        world.step(loss, batch)


@case("S7", "a weak reference to the batch, in the closure")
def a_weak_reference(world: World) -> None:
    import weakref

    model = network()
    for batch in world.batches(model):
        whole = weakref.ref(batch[0])
        world.step(lambda m, x, y, whole=whole: cross_entropy(m, x - whole().mean(0), y), batch)


@case("S7", "a list of strings beside the tensors")
def strings(world: World) -> None:
    model = network()
    for x, y in world.batches(model):
        names = [f"record {k}" for k in range(len(x))]
        world.step(lambda m, x, y, names: cross_entropy(m, x * len(names), y), (x, y, names))


@case("S7", "a tensor of the whole batch that is repeated for each record")
def the_batch_for_each_record(world: World) -> None:
    """What comes in by the batch is the user's: step of a run refuses it, see S8."""
    with world.training(network()) as training:
        for x, y in training.batches():
            whole = x.flatten().expand(len(x), -1)
            training.private.step(
                lambda m, x, whole, y: cross_entropy(m, x - whole.mean(), y), (x, whole, y)
            )
