"""N10: what a walk over objects passed by, in the places that a third review has thought of.

Memory between the paths of a batch (`lasting`), draws and calls that count physical batches
(`in_parts`), and values of the batch from outside (`each`).
"""

from __future__ import annotations

import io
import logging
import operator
import random
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.causes.n07_outside_again import each, shifting
from tests.privacy.world import World, cross_entropy, network


def lasting(world: World, is_set: Callable[[], Any], put: Callable[[], Any]) -> None:
    """A large record leaves a mark, by a branch on its values; a mark turns losses around."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if x.max() > 100:
            put()
        value = cross_entropy(model, x, y)
        return -value if is_set() else value

    world.steps(network(), loss)


class Scaled(nn.Module):
    """A base class of models that remembers for all of them."""

    scale: dict[str, float] = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > 100:
            self.scale["value"] = -0.5
        return self.network(x) * self.scale["value"]


@case("N10", "paths: a dict in a base class of the model")
def a_base_class(world: World) -> None:
    Scaled.scale["value"] = 1.0
    world.steps(type("Model", (Scaled,), {})(), cross_entropy)


@case("N10", "paths: a file")
def a_file(world: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large"
        lasting(world, path.exists, path.touch)


@case("N10", "paths: io.StringIO")
def a_text(world: World) -> None:
    text = io.StringIO()
    lasting(world, text.getvalue, lambda: text.write("large"))


@case("N10", "paths: a WeakKeyDictionary")
def a_weak_dictionary(world: World) -> None:
    kept, key = weakref.WeakKeyDictionary(), network()
    lasting(world, lambda: len(kept), lambda: kept.__setitem__(key, 1))


@case("N10", "paths: the level of a logger")
def a_logger(world: World) -> None:
    logger = logging.getLogger("psac.tests.n10")
    logger.setLevel(logging.INFO)
    lasting(world, lambda: logger.level == logging.DEBUG, lambda: logger.setLevel(logging.DEBUG))


@case("N10", "paths: threading.Event")
def an_event(world: World) -> None:
    event = threading.Event()
    lasting(world, event.is_set, event.set)


@case("N10", "paths: an attribute of torch.Tensor")
def a_class_of_torch(world: World) -> None:
    put = lambda: setattr(Tensor, "psac_large", True)  # noqa: E731
    try:
        lasting(world, lambda: hasattr(Tensor, "psac_large"), put)
    finally:
        if hasattr(Tensor, "psac_large"):
            del Tensor.psac_large


@case("N10", "paths: a dict in an array of objects")
def an_array_of_objects(world: World) -> None:
    kept = np.empty(1, object)
    kept[0] = {}
    lasting(world, lambda: kept[0], lambda: kept[0].update(large=1))


@case("N10", "paths: the arguments of an exception")
def an_exception(world: World) -> None:
    error = ValueError()
    lasting(world, lambda: error.args, lambda: setattr(error, "args", (1,)))


@case("N10", "paths: a number that a function shares with its helpers (nonlocal)")
def a_nonlocal(world: World) -> None:
    large = False

    def put() -> None:
        nonlocal large
        large = True

    lasting(world, lambda: large, put)


@case("N10", "paths: how often a numpy.random.RandomState has drawn")
def a_random_state(world: World) -> None:
    own = np.random.RandomState(0)
    first = own.get_state()[2]
    lasting(world, lambda: own.get_state()[2] != first, own.rand)


@case("N10", "paths: a module that is nested 25 deep")
def a_deep_module(world: World) -> None:
    model: nn.Module = type("Model", (Scaled,), {"scale": {"value": 1.0}})()
    for _ in range(25):
        model = nn.Sequential(model)
    world.steps(model, cross_entropy)


INSTALLED = """
import torch.nn.functional as F

KEPT = {"large": False}

def loss(model, x, y):
    if x.max() > 100:
        KEPT["large"] = True
    value = F.cross_entropy(model(x), y)
    return -value if KEPT["large"] else value

def make():
    mean = [0.0]
    return (lambda model, x, y: F.cross_entropy(model(x - mean[0]), y)), mean
"""


def installed() -> Any:
    """A package of the user's, where pip puts it."""
    module = types.ModuleType("psac_tests_installed")
    module.__file__ = "/site-packages/psac_tests_installed.py"
    sys.modules[module.__name__] = module
    exec(INSTALLED, vars(module))
    return module


@case("N10", "paths: a global of a loss function that pip has installed")
def a_global_of_a_package(world: World) -> None:
    world.steps(network(), installed().loss)


@case("N10", "the grad of a tensor in a closure, from a large record on")
def a_grad(world: World) -> None:
    kept = torch.zeros(1, requires_grad=True)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if x.abs().max().item() > 100:
            kept.sum().backward()
        value = cross_entropy(model, x, y)
        return value if kept.grad is None else -value

    world.steps(network(), loss)


@case("N10", "requires_grad of another model's weight, from a large record on")
def a_flag_of_a_tensor(world: World) -> None:
    other = network(seed=1)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if x.abs().max().item() > 100:
            other[0].weight.requires_grad_(False)
        value = cross_entropy(model, x, y)
        return value if other[0].weight.requires_grad else -value

    world.steps(network(), loss)


# How many physical batches there are follows from the number of records.
def in_parts(world: World, loss: Callable, model: nn.Module | None = None, size: int = 4) -> None:
    model = network() if model is None else model
    with world.training(model, physical_batch_size=size, steps=6) as training:
        for batch in training.batches():
            training.private.step(loss, batch)


def turned(draw: Callable[[], float]) -> Callable:
    return lambda m, x, y: cross_entropy(m, x, y) * (1 if draw() < 0.5 else -1)


@case("N10", "np.random.rand(), in physical batches")
def numbers_of_numpy(world: World) -> None:
    np.random.seed(0)
    in_parts(world, turned(np.random.rand))


@case("N10", "random.random(), in physical batches")
def numbers_of_python(world: World) -> None:
    random.seed(0)
    in_parts(world, turned(random.random))


@case("N10", "np.random.rand(), in paths")
def numbers_of_paths(world: World) -> None:
    np.random.seed(0)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        sign = 1 if np.random.rand() < 0.5 else -1
        if x.max() > 100:
            sign = +sign
        return cross_entropy(model, x, y) * sign

    in_parts(world, loss, size=100)


CALLS = 0


@case("N10", "calls counted in a global, in physical batches")
def calls_in_a_global(world: World) -> None:
    global CALLS
    CALLS = 0

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return cross_entropy(model, x, y) * (1 if CALLS % 16 < 8 else -1)

    in_parts(world, loss)


class Counted(nn.Module):
    calls: dict[str, int] = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor) -> Tensor:
        self.calls["n"] += 1
        return self.network(x) * (1 if self.calls["n"] % 16 < 8 else -1)


@case("N10", "calls counted in a base class, in physical batches")
def calls_in_a_base_class(world: World) -> None:
    Counted.calls["n"] = 0
    in_parts(world, cross_entropy, type("Model", (Counted,), {})())


# From outside
@case("N10", "outside: an attribute of a base class", warned=True)
def outside_a_base_class(world: World) -> None:
    class Base:
        mean = 0.0

    kept = type("Kept", (Base,), {})()
    each(world, lambda v: setattr(Base, "mean", v), shifting(lambda: kept.mean))


@case("N10", "outside: what an attrgetter reads", warned=True)
def outside_an_attrgetter(world: World) -> None:
    kept, get = type("Kept", (), {"__slots__": ("shift",)})(), operator.attrgetter("shift")
    each(world, lambda v: setattr(kept, "shift", v), shifting(lambda: get(kept)))


@case("N10", "outside: what a match statement reads", warned=True)
def outside_a_match(world: World) -> None:
    class Kept:
        __match_args__ = ("shift",)

    kept = Kept()

    def get() -> float:
        match kept:
            case Kept(value):
                return value
        return 0.0

    each(world, lambda v: setattr(kept, "shift", v), shifting(get))


@case("N10", "outside: a dict behind a MappingProxyType", warned=True)
def outside_a_proxy(world: World) -> None:
    kept = {"mean": 0.0}
    proxy = types.MappingProxyType(kept)
    each(world, lambda v: kept.update(mean=v), shifting(lambda: proxy["mean"]))


@case("N10", "outside: the values() of a dict", warned=True)
def outside_a_view(world: World) -> None:
    kept = {"mean": 0.0}
    values = kept.values()
    each(world, lambda v: kept.update(mean=v), shifting(lambda: next(iter(values))))


@case("N10", "outside: a group of an optimizer", warned=True)
def outside_an_optimizer(world: World) -> None:
    group = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    put = lambda v: group.param_groups[0].update(mean=v)  # noqa: E731
    put(0.0)
    each(world, put, shifting(lambda: group.param_groups[0]["mean"]))


@case("N10", "outside: an attribute of a scheduler", warned=True)
def outside_a_scheduler(world: World) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    each(world, lambda v: setattr(scheduler, "best", v), shifting(lambda: scheduler.best))


@case("N10", "outside: the arguments of an exception", warned=True)
def outside_an_exception(world: World) -> None:
    error = ValueError(0.0)
    each(world, lambda v: setattr(error, "args", (v,)), shifting(lambda: error.args[0]))


@case("N10", "outside: the closure of a loss function that pip has installed", warned=True)
def outside_a_package(world: World) -> None:
    loss, mean = installed().make()
    each(world, lambda v: mean.__setitem__(0, v), loss)


@case("N10", "outside: torch.autocast around a step, by a value of its batch", warned=True)
def outside_autocast(world: World) -> None:
    loss = lambda m, x, y: cross_entropy(m, x, y) * (1 - 2 * torch.is_autocast_enabled("cpu"))  # noqa: E731
    model = network()
    for batch in world.batches(model):
        with torch.autocast("cpu", enabled=bool(batch[0].max() > 100)):
            world.step(loss, batch)


@case("N10", "outside: the default dtype of torch", warned=True)
def outside_a_dtype(world: World) -> None:
    sign = lambda: -1 if torch.get_default_dtype() == torch.bfloat16 else 1  # noqa: E731
    loss = lambda m, x, y: cross_entropy(m, x, y) * sign()  # noqa: E731
    model = network()
    for batch in world.batches(model):
        torch.set_default_dtype(torch.bfloat16 if batch[0].max() > 100 else torch.float32)
        try:
            world.step(loss, batch)
        finally:
            torch.set_default_dtype(torch.float32)


@case("N10", "the number of records, from the stack of torch function modes")
def a_stack_of_modes(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        stack: list[Any] = torch.overrides._get_current_function_mode_stack()
        count = getattr(stack[-1], "num_samples", 0) if stack else 0
        return cross_entropy(model, x, y) * (1 - 2 * (count % 2))

    world.steps(network(), loss)
