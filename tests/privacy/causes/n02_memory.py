"""N2: plain Python between records.

Where vmap refuses, records are computed one after the other, and Python has values to remember.
Each case keeps the largest mean so far, in another place, and shifts the next record by it.
"""

from __future__ import annotations

import array
import collections
import contextvars
import decimal
import functools
import os
import sys
import threading
import types

import numpy as np
import torch
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


def remembering(get, put):
    """A loss that reads a number, and puts the larger one of it and the record's mean there."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        before = float(get(model))
        put(model, max(before, min(x.mean().item(), 200.0)))
        return cross_entropy(model, x - before, y)

    return loss


def on_the_model(world: World, start, wrap, get=lambda model: model.largest) -> None:
    """In an attribute of the model; `wrap` is what the number is put into."""
    model = network()
    model.largest = start
    put = lambda model, value: setattr(model, "largest", wrap(value))  # noqa: E731
    world.steps(model, remembering(get, put))


@case("N2", "a float in an attribute of the model")
def a_float(world: World) -> None:
    on_the_model(world, 0.0, float)


@case("N2", "a numpy.float32 in an attribute of the model")
def a_numpy_number(world: World) -> None:
    on_the_model(world, np.float32(0), np.float32)


@case("N2", "a Decimal in an attribute of the model")
def a_decimal(world: World) -> None:
    on_the_model(world, decimal.Decimal(0), decimal.Decimal)


@case("N2", "the length of a range in an attribute of the model")
def a_range(world: World) -> None:
    on_the_model(world, range(0), lambda v: range(int(v)), lambda model: len(model.largest))


@case("N2", "a numpy array in an attribute of the model")
def an_array(world: World) -> None:
    on_the_model(world, np.zeros(1), lambda v: np.full(1, v), lambda model: model.largest[0])


@case("N2", "a bytearray, in place")
def a_bytearray(world: World) -> None:
    kept = bytearray(1)
    world.steps(
        network(), remembering(lambda m: kept[0], lambda m, v: kept.__setitem__(0, int(max(v, 0))))
    )


@case("N2", "an array.array, in place")
def a_typed_array(world: World) -> None:
    kept = array.array("f", [0.0])
    world.steps(network(), remembering(lambda m: kept[0], lambda m, v: kept.__setitem__(0, v)))


@case("N2", "a deque in an attribute")
def a_deque(world: World) -> None:
    kept = collections.deque([0.0], maxlen=1)
    world.steps(network(), remembering(lambda m: kept[0], lambda m, v: kept.append(v)))


@case("N2", "a buffer, in place")
def a_buffer(world: World) -> None:
    model = network()
    model.register_buffer("largest", torch.zeros(()))
    put = lambda model, value: model.largest.fill_(value)  # noqa: E731
    world.steps(model, remembering(lambda m: m.largest.item(), put))


@case("N2", "a frozen parameter, in place")
def a_frozen_parameter(world: World) -> None:
    model = network()
    model.largest = nn.Parameter(torch.zeros(()), requires_grad=False)

    def put(model, value):
        with torch.no_grad():
            model.largest.fill_(value)

    world.steps(model, remembering(lambda m: m.largest.item(), put))


@case("N2", "a nonlocal variable")
def a_nonlocal(world: World) -> None:
    largest = 0.0

    def put(model, value):
        nonlocal largest
        largest = value

    world.steps(network(), remembering(lambda m: largest, put))


LARGEST = 0.0


def get_global(model):
    return LARGEST


def put_global(model, value):
    global LARGEST
    LARGEST = value


@case("N2", "a global variable of helper functions")
def a_global(world: World) -> None:
    put_global(None, 0.0)
    world.steps(network(), remembering(get_global, put_global))


class GlobalForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()
        put_global(None, 0.0)

    def forward(self, x):
        global LARGEST
        before = LARGEST
        LARGEST = max(before, min(x.mean().item(), 200.0))
        return self.network(x - before)


@case("N2", "a global variable of the model's forward")
def a_global_of_the_forward(world: World) -> None:
    world.steps(GlobalForward(), cross_entropy)


class ClassForward(nn.Module):
    largest = 0.0

    def __init__(self):
        super().__init__()
        self.network, ClassForward.largest = network(), 0.0

    def forward(self, x):
        before = ClassForward.largest
        ClassForward.largest = max(before, min(x.mean().item(), 200.0))
        return self.network(x - before)


@case("N2", "a class attribute of the model")
def a_class_attribute(world: World) -> None:
    world.steps(ClassForward(), cross_entropy)


@case("N2", "a global variable of a function inside the loss")
def an_inner_function(world: World) -> None:
    put_global(None, 0.0)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        def shifted(x: Tensor) -> Tensor:
            global LARGEST
            before = LARGEST
            LARGEST = max(before, min(x.mean().item(), 200.0))
            return x - before

        return cross_entropy(model, shifted(x), y)

    world.steps(network(), loss)


@case("N2", "an attribute of an imported module")
def a_module(world: World) -> None:
    settings = sys.modules.setdefault("psac_tests_settings", types.ModuleType("settings"))
    settings.largest = 0.0
    put = lambda model, value: setattr(settings, "largest", value)  # noqa: E731
    world.steps(network(), remembering(lambda m: settings.largest, put))


class Trainer:
    """Owns the loss as a method, as training scripts do."""

    def __init__(self) -> None:
        self.largest = 0.0

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        before = self.largest
        self.largest = max(before, min(x.mean().item(), 200.0))
        return cross_entropy(model, x - before, y)


@case("N2", "an attribute of the object whose method is the loss")
def a_method(world: World) -> None:
    world.steps(network(), Trainer().loss)


@case("N2", "a list that is bound by functools.partial")
def a_partial(world: World) -> None:
    def loss(kept: list, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        before = kept[0]
        kept[0] = max(before, min(x.mean().item(), 200.0))
        return cross_entropy(model, x - before, y)

    world.steps(network(), functools.partial(loss, [0.0]))


@case("N2", "a generator")
def a_generator(world: World) -> None:
    def largest_so_far():
        largest = 0.0
        while True:
            largest = max(largest, (yield largest))

    values = largest_so_far()
    next(values)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x - values.send(min(x.mean().item(), 200.0)), y)

    world.steps(network(), loss)


@case("N2", "functools.lru_cache around what the first record sets")
def a_cache(world: World) -> None:
    first: dict[str, float] = {}

    @functools.lru_cache
    def scale() -> float:
        return first["mean"]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        first["mean"] = x.mean().item()
        before = scale()
        del first["mean"]
        return cross_entropy(model, x - before, y)

    world.steps(network(), loss)


CONTEXT = contextvars.ContextVar("largest", default=0.0)


@case("N2", "a context variable")
def a_context_variable(world: World) -> None:
    CONTEXT.set(0.0)
    world.steps(network(), remembering(lambda m: CONTEXT.get(), lambda m, v: CONTEXT.set(v)))


@case("N2", "threading.local")
def a_thread_local(world: World) -> None:
    local = threading.local()
    local.largest = 0.0
    put = lambda model, value: setattr(local, "largest", value)  # noqa: E731
    world.steps(network(), remembering(lambda m: local.largest, put))


@case("N2", "an environment variable")
def an_environment_variable(world: World) -> None:
    name = "PSAC_TESTS_LARGEST"
    os.environ[name] = "0"
    try:
        put = lambda model, value: os.environ.__setitem__(name, str(value))  # noqa: E731
        world.steps(network(), remembering(lambda m: os.environ[name], put))
    finally:
        del os.environ[name]


@case("N2", "slots of an object")
def slots(world: World) -> None:
    class Slotted:
        __slots__ = ("largest",)

    kept = Slotted()
    kept.largest = 0.0
    put = lambda model, value: setattr(kept, "largest", value)  # noqa: E731
    world.steps(network(), remembering(lambda m: kept.largest, put))
