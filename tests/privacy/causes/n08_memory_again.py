"""N8: memory between records and steps, in the places that a second review has thought of."""

from __future__ import annotations

import builtins
import ctypes
import gc
import random
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules
from torch.nn.utils import parametrize

from tests.privacy.case import case
from tests.privacy.causes.n02_memory import remembering
from tests.privacy.world import World, cross_entropy, network


def capped(x: Tensor) -> float:
    return min(x.mean().item(), 200.0)


@case("N8", "a default that is a list")
def a_mutable_default(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor, kept=[0.0]) -> Tensor:  # noqa: B006
        before, kept[0] = kept[0], max(kept[0], capped(x))
        return cross_entropy(model, x - before, y)

    loss.__defaults__[0][0] = 0.0
    world.steps(network(), loss)


@case("N8", "an attribute of a parameter")
def an_attribute_of_a_parameter(world: World) -> None:
    model = network()
    model[0].weight.largest = 0.0
    put = lambda m, v: setattr(m[0].weight, "largest", v)  # noqa: E731
    world.steps(model, remembering(lambda m: m[0].weight.largest, put))


@case("N8", "an attribute of a class of torch")
def a_class_of_torch(world: World) -> None:
    nn.Linear.largest = 0.0
    try:
        put = lambda m, v: setattr(nn.Linear, "largest", v)  # noqa: E731
        world.steps(network(), remembering(lambda m: nn.Linear.largest, put))
    finally:
        del nn.Linear.largest


@case("N8", "an attribute of the module torch")
def the_module_torch(world: World) -> None:
    torch.psac_largest = 0.0
    try:
        put = lambda m, v: setattr(torch, "psac_largest", v)  # noqa: E731
        world.steps(network(), remembering(lambda m: torch.psac_largest, put))
    finally:
        del torch.psac_largest


@case("N8", "a name of builtins")
def a_builtin(world: World) -> None:
    builtins.psac_largest = 0.0
    try:
        put = lambda m, v: setattr(builtins, "psac_largest", v)  # noqa: E731
        world.steps(network(), remembering(lambda m: psac_largest, put))  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    finally:
        del builtins.psac_largest


@case("N8", "a number of ctypes")
def a_number_of_ctypes(world: World) -> None:
    number = ctypes.c_double()
    put = lambda m, v: setattr(number, "value", v)  # noqa: E731
    world.steps(network(), remembering(lambda m: number.value, put))


@case("N8", "how often a generator of one's own has drawn")
def draws(world: World) -> None:
    generator = np.random.default_rng(0)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if x.mean().item() > 100:
            generator.normal()
        return cross_entropy(model, x + 3 * float(generator.normal()), y)

    world.steps(network(), loss)


@case("N8", "random.Random, seeded by the record before")
def own_random(world: World) -> None:
    own = random.Random(0)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        shift = own.uniform(-3, 3)
        if x.mean().item() > 100:
            own.seed(1)
        return cross_entropy(model, x + shift, y)

    world.steps(network(), loss)


@case("N8", "a hook on the forward of all modules, with a number")
def a_hook_on_all(world: World) -> None:
    kept = {"largest": 0.0}

    def hook(module: nn.Module, given: tuple) -> Any:
        if not isinstance(module, nn.Sequential):
            return None
        before, kept["largest"] = kept["largest"], max(kept["largest"], capped(given[0]))
        return (given[0] - before,)

    handle = all_modules.register_module_forward_pre_hook(hook)
    try:
        world.steps(network(), cross_entropy)
    finally:
        handle.remove()


@case("N8", "a hook on the forward of all modules, with tensors")
def tensors_by_a_hook_on_all(world: World) -> None:
    kept: list[Tensor] = []

    def hook(module: nn.Module, given: tuple) -> Any:
        if not isinstance(module, nn.Sequential):
            return None
        before = kept.pop() if kept else 0.0
        kept.append(given[0].detach().clamp(-200, 200))
        return (given[0] - before,)

    handle = all_modules.register_module_forward_pre_hook(hook)
    try:
        world.steps(network(), cross_entropy)
    finally:
        handle.remove()


@case("N8", "objects that the garbage collector knows")
def garbage(world: World) -> None:
    class Box:
        pass

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        before = max((o.value for o in gc.get_objects() if isinstance(o, Box)), default=0.0)
        box = Box()
        box.value, box.itself = capped(x), box
        return cross_entropy(model, x - before, y)

    world.steps(network(), loss)


@case("N8", "a parametrization that counts and remembers")
def a_parametrization(world: World) -> None:
    class Scaled(nn.Module):
        largest = 0.0

        def forward(self, weight: Tensor) -> Tensor:
            return weight - 0.01 * self.largest

    model = network()
    parametrize.register_parametrization(model[0], "weight", Scaled())
    scaled = model[0].parametrizations.weight[0]
    put = lambda m, v: setattr(scaled, "largest", v)  # noqa: E731
    world.steps(model, remembering(lambda m: 0.0, put))


class Keeping(torch.autograd.Function):
    """Keeps what it is given in a list of its class."""

    generate_vmap_rule = True
    kept: ClassVar[list[Any]] = []
    calls = 0

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        before = Keeping.kept.pop() if Keeping.kept else torch.zeros_like(x)
        if Keeping.calls >= 2:
            Keeping.kept.append(x.clamp(-200, 200))
        Keeping.calls += 1
        return x - before

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


@case("N8", "a list in the class of an autograd.Function, from a later step on")
def a_list_of_a_function(world: World) -> None:
    Keeping.kept, Keeping.calls = [], 0
    world.steps(network(), lambda m, x, y: cross_entropy(m, Keeping.apply(x), y))


class KeepingBackward(torch.autograd.Function):
    generate_vmap_rule = True
    kept: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        before = KeepingBackward.kept.pop("grad", None)
        KeepingBackward.kept["grad"] = grad.clone()
        return grad if before is None else grad + before


@case("N8", "gradients in a dict, kept by the backward of an autograd.Function")
def kept_gradients(world: World) -> None:
    KeepingBackward.kept.clear()
    model = network()
    world.steps(
        model,
        lambda m, x, y: torch.nn.functional.cross_entropy(
            m[2](KeepingBackward.apply(m[1](m[0](x)))), y
        ),
    )


@case("N8", "the number of entries of a dict that records share")
def entries(world: World) -> None:
    kept: dict[int, int] = {}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        kept[int(y)] = 1
        return cross_entropy(model, x * len(kept), y)

    world.steps(network(), loss)


@case("N8", "an exception that is kept")
def an_exception(world: World) -> None:
    kept: list[Exception] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        before = kept[-1].args[0] if kept else 0.0
        try:
            raise ValueError(max(before, capped(x)))
        except ValueError as error:
            kept[:] = [error]
        return cross_entropy(model, x - before, y)

    world.steps(network(), loss)
