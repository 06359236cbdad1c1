"""N7: values of the batch from outside, in the places that a second review has thought of.

The loop puts the mean of the batch somewhere, and the function shifts its inputs by it.
"""

from __future__ import annotations

import contextvars
import ctypes
import dataclasses
import functools
import itertools
import os
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network

CONTEXT = contextvars.ContextVar("mean", default=0.0)


def shifting(get: Callable[[], Any]) -> Callable:
    return lambda model, x, y: cross_entropy(model, x - get(), y)


def each(world: World, put: Callable[[float], Any], loss: Callable, model: Any = None) -> None:
    model = network() if model is None else model
    for batch in world.batches(model):
        put(float(batch[0].mean()))
        world.step(loss, batch)


def trained(world: World, put: Callable[[float], Any], loss: Callable) -> None:
    """In a whole run, which probes for what no walk reaches."""
    with world.training(network()) as training:
        for batch in training.batches():
            put(float(batch[0].mean()) + training.private.steps_taken)
            training.private.step(loss, batch)


@case("N7", "an attribute of the model's class", warned=True)
def a_class_attribute(world: World) -> None:
    class Shifted(nn.Sequential):
        mean = 0.0

        def forward(self, x):
            return super().forward(x - self.mean)

    each(world, lambda v: setattr(Shifted, "mean", v), cross_entropy, Shifted(network()))


@case("N7", "a context variable", warned=True)
def a_context_variable(world: World) -> None:
    each(world, CONTEXT.set, shifting(CONTEXT.get))


class Holder:
    mean = 0.0

    @property
    def shift(self) -> float:
        return self.values[0]

    values: ClassVar[list[float]] = [0.0]


@case("N7", "an object behind a weak reference", warned=True)
def a_weak_reference(world: World) -> None:
    holder = Holder()
    reference = weakref.ref(holder)
    each(world, lambda v: setattr(holder, "mean", v), shifting(lambda: reference().mean))


@case("N7", "a property that reads a list of its class", warned=True)
def a_property(world: World) -> None:
    holder = Holder()
    each(world, lambda v: Holder.values.__setitem__(0, v), shifting(lambda: holder.shift))


@case("N7", "a number in a tuple in a dict in a list", warned=True)
def nested(world: World) -> None:
    kept: list = [{"a": (0.0,)}]
    each(world, lambda v: kept[0].__setitem__("a", (v,)), shifting(lambda: kept[0]["a"][0]))


@case("N7", "a default that is a list", warned=True)
def a_mutable_default(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor, means=[0.0]) -> Tensor:  # noqa: B006
        return cross_entropy(model, x - means[-1], y)

    each(world, loss.__defaults__[0].append, loss)


@case("N7", "loss.__kwdefaults__", warned=True)
def a_keyword_default(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor, *, mean: float = 0.0) -> Tensor:
        return cross_entropy(model, x - mean, y)

    each(world, lambda v: loss.__kwdefaults__.__setitem__("mean", v), loss)


@case("N7", "an attribute of the function", warned=True)
def an_attribute_of_the_function(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x - loss.mean, y)

    each(world, lambda v: setattr(loss, "mean", v), loss)


@case("N7", "a module of the user's", warned=True)
def a_module(world: World) -> None:
    settings = sys.modules.setdefault("psac_tests_outside", types.ModuleType("psac_tests_outside"))
    each(world, lambda v: setattr(settings, "mean", v), shifting(lambda: settings.mean))


@case("N7", "a dataclass within a dataclass", warned=True)
def a_dataclass(world: World) -> None:
    @dataclasses.dataclass
    class Inner:
        mean: float = 0.0

    @dataclasses.dataclass
    class Outer:
        inner: Inner

    outer = Outer(Inner())
    each(world, lambda v: setattr(outer.inner, "mean", v), shifting(lambda: outer.inner.mean))


@case("N7", "an array without axes", warned=True)
def an_array_without_axes(world: World) -> None:
    kept = np.zeros(())
    each(world, lambda v: kept.fill(v), shifting(lambda: float(kept)))


@case("N7", "a generator that the loop advances", warned=True)
def a_generator(world: World) -> None:
    def last():
        mean = 0.0
        while True:
            given = yield mean
            mean = mean if given is None else given

    values = last()
    next(values)
    each(world, values.send, shifting(lambda: next(values)))


@case("N7", "an attribute of a parameter", warned=True)
def an_attribute_of_a_parameter(world: World) -> None:
    model = network()
    loss = lambda m, x, y: cross_entropy(m, x - m[0].weight.mean_of_inputs, y)  # noqa: E731
    each(world, lambda v: setattr(model[0].weight, "mean_of_inputs", v), loss, model)


@case("N7", "the grad of a tensor in a closure")
def a_grad(world: World) -> None:
    carrier, model = torch.zeros(13, 4), network()
    for batch in world.batches(model):
        carrier = torch.zeros_like(batch[0])
        carrier.grad = batch[0]
        world.step(lambda m, x, y, c=carrier: cross_entropy(m, x - c.grad.mean(0), y), batch)


@case("N7", "whole.T.mean(1) of the batch in a closure")
def transposed(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        world.step(lambda m, x, y, b=batch[0]: cross_entropy(m, x - b.T.mean(1), y), batch)


@case("N7", "the same by .data, from the first step on")
def data(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        world.step(lambda m, x, y, b=batch[0]: cross_entropy(m, x - b.data.mean(0), y), batch)


@case("N7", "batch.shape[0] in a closure")
def a_shape(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        loss = lambda m, x, y, b=batch[0]: cross_entropy(m, x, y) * (b.shape[0] - 12.5)  # noqa: E731
        world.step(loss, batch)


@case("N7", "a cache of functools that the loop fills", warned=True)
def a_cache(world: World) -> None:
    box: list[float] = []

    @functools.lru_cache
    def mean() -> float:
        return box.pop() if box else 0.0

    def put(value: float) -> None:
        mean.cache_clear()
        box.append(value)
        mean()

    trained(world, put, shifting(mean))


@case("N7", "an environment variable", warned=True)
def an_environment_variable(world: World) -> None:
    name = "PSAC_TESTS_MEAN"
    try:
        put = lambda v: os.environ.__setitem__(name, str(v))  # noqa: E731
        trained(world, put, shifting(lambda: float(os.environ[name])))
    finally:
        os.environ.pop(name, None)


@case("N7", "a file", warned=True)
def a_file(world: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mean"
        trained(world, lambda v: path.write_text(str(v)), shifting(lambda: float(path.read_text())))


@case("N7", "a hook before the forward of all modules", warned=True)
def a_hook_on_all(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        mean = float(batch[0].mean())
        hook = lambda m, given, v=mean: (  # noqa: E731
            (given[0] - v,) if isinstance(m, nn.Sequential) else None
        )
        handle = all_modules.register_module_forward_pre_hook(hook)
        try:
            world.step(cross_entropy, batch)
        finally:
            handle.remove()


@case("N7", "model.forward, put on the instance", warned=True)
def a_forward(world: World) -> None:
    model = network()
    plain = model.forward
    put = lambda v: setattr(model, "forward", lambda x: plain(x - v))  # noqa: E731
    each(world, put, cross_entropy, model)


@case("N7", "another class for the model", warned=True)
def another_class(world: World) -> None:
    model = network()

    def put(value: float) -> None:
        forward = lambda self, x: nn.Sequential.forward(self, x - value)  # noqa: E731
        model.__class__ = type("Sequential", (nn.Sequential,), {"forward": forward})

    each(world, put, cross_entropy, model)


@case("N7", "a function of torch, replaced by another", warned=True)
def a_patch(world: World) -> None:
    plain = F.softplus
    try:
        each(
            world,
            lambda v: setattr(F, "softplus", lambda x: plain(x) - v),
            lambda m, x, y: cross_entropy(m, x + F.softplus(x), y),
        )
    finally:
        F.softplus = plain


@case("N7", "another code for the function", warned=True)
def another_code(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x, y)

    def put(value: float) -> None:
        scope = {"cross_entropy": cross_entropy}
        exec(f"def f(model, x, y):\n    return cross_entropy(model, x - ({value}), y)", scope)
        loss.__code__ = scope["f"].__code__

    each(world, put, loss)


@case("N7", "a function that is written anew, with the number in its text", warned=True)
def written_anew(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        text = f"lambda m, x, y: cross_entropy(m, x - ({float(batch[0].mean())}), y)"
        world.step(eval(text, {"cross_entropy": cross_entropy}), batch)


@case("N7", "one of two functions, by the losses of the last batch", warned=True)
def one_of_two(world: World) -> None:
    first, second, chosen = cross_entropy, lambda m, x, y: -cross_entropy(m, x, y), 0.0
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    for batch in world.batches(model):
        sensitive = world.step(first if chosen < 10 else second, batch)
        chosen = float(sensitive.losses.mean())


@case("N7", "slots of an object", warned=True)
def slots(world: World) -> None:
    class Slotted:
        __slots__ = ("mean",)

    kept = Slotted()
    each(world, lambda v: setattr(kept, "mean", v), shifting(lambda: kept.mean))


@case("N7", "threading.local", warned=True)
def a_thread_local(world: World) -> None:
    local = threading.local()
    each(world, lambda v: setattr(local, "mean", v), shifting(lambda: local.mean))


@case("N7", "a number of ctypes", warned=True)
def a_number_of_ctypes(world: World) -> None:
    number = ctypes.c_double()
    each(world, lambda v: setattr(number, "value", v), shifting(lambda: number.value))


@case("N7", "an object of an installed package", warned=True)
def an_object_of_a_package(world: World) -> None:
    from packaging.version import Version

    class Packaged(Version):
        __module__ = Version.__module__

    kept = Packaged("1.0")
    kept.mean = 0.0
    each(world, lambda v: setattr(kept, "mean", v), shifting(lambda: kept.mean))


@case("N7", "an iterator over the means of the batches", warned=True)
def an_iterator(world: World) -> None:
    waiting: list[float] = []
    values = itertools.chain.from_iterable(iter(lambda: waiting, None))

    def put(value: float) -> None:
        waiting[:] = [value]

    each(world, put, shifting(lambda: next(values)))


@case("N7", "the frames of the call: the number of records")
def frames(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        frame = sys._getframe()
        while frame is not None and "rec" not in frame.f_locals:
            frame = frame.f_back
        n = frame.f_locals["rec"].num_samples if frame else 12
        return cross_entropy(model, x, y) * (n - 12.5)

    world.steps(network(), loss)


@case("N7", "torch's own way to all records of a tensor")
def unwrapped(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        whole = torch._C._functorch.get_unwrapped(x)
        return cross_entropy(model, x - whole.mean(0), y)

    world.steps(network(), loss)
