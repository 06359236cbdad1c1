"""N6: code that vmap lets see more than one record."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.privacy.case import case
from tests.privacy.world import Before, World, cross_entropy, network

HUGE = 1e6


@torch.library.custom_op("psac_tests::mixed", mutates_args=())
def mixed(x: Tensor) -> Tensor:
    return x.clone()


@mixed.register_fake
def _(x):
    return torch.empty_like(x)


@mixed.register_vmap
def _(info, in_dims, x):
    return x - 1e-3 * x.mean(in_dims[0], keepdim=True), in_dims[0]


mixed.register_autograd(lambda ctx, grad: grad)


class OwnRule(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad

    @staticmethod
    def vmap(info, in_dims, x):
        return x - 1e-3 * x.mean(in_dims[0], keepdim=True), in_dims[0]


def around(function):
    """An autograd.Function, with a vmap rule that torch generates, that calls another."""

    class Outer(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return function(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad

    return Outer.apply


@case("N6", "an operator with register_vmap", outlier=HUGE)
def an_operator(world: World) -> None:
    world.steps(Before(mixed), cross_entropy)


@case("N6", "the same by torch.ops", outlier=HUGE)
def an_operator_by_name(world: World) -> None:
    world.steps(Before(lambda x: torch.ops.psac_tests.mixed.default(x)), cross_entropy)


@case("N6", "an autograd.Function with a vmap rule", outlier=HUGE)
def a_function(world: World) -> None:
    world.steps(Before(OwnRule.apply), cross_entropy)


@case("N6", "such an operator, inside the forward of an autograd.Function", outlier=HUGE)
def an_operator_inside_a_function(world: World) -> None:
    world.steps(Before(around(mixed)), cross_entropy)


@case("N6", "such a Function, inside the forward of another", outlier=HUGE)
def a_function_inside_a_function(world: World) -> None:
    world.steps(Before(around(OwnRule.apply)), cross_entropy)


@case("N6", "such a Function, inside torch.func.grad", outlier=HUGE)
def a_function_inside_a_transform(world: World) -> None:
    slope = torch.func.grad(lambda x: OwnRule.apply(x).square().sum() / 2)
    world.steps(Before(slope), cross_entropy)


@case("N6", "such an operator, inside torch.jit.script", outlier=HUGE)
def an_operator_inside_a_script(world: World) -> None:
    @torch.jit.script
    def function(x: Tensor) -> Tensor:
        return torch.ops.psac_tests.mixed(x)

    world.steps(Before(function), cross_entropy)


@case("N6", "such an operator, as the distance function of a triplet loss", outlier=HUGE)
def an_operator_inside_a_loss(world: World) -> None:
    def distance(a: Tensor, b: Tensor) -> Tensor:
        return mixed(a - b).norm(dim=-1)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        return cross_entropy(model, x, y) + F.triplet_margin_with_distance_loss(
            out, x[:, :3], -x[:, :3], distance_function=distance
        )

    world.steps(network(), loss)


class MinusMean(TorchFunctionMode):
    """Takes a little of the mean over the first axis off the inputs of every linear layer."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear:
            args = (args[0] - 1e-3 * args[0].mean(0, keepdim=True), *args[1:])
        return func(*args, **(kwargs or {}))


@case("N6", "a TorchFunctionMode around the step", outlier=HUGE)
def a_mode_around(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        with MinusMean():
            world.step(cross_entropy, batch)


@case("N6", "a TorchFunctionMode inside the function", outlier=HUGE)
def a_mode_inside(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with MinusMean():
            return cross_entropy(model, x, y)

    world.steps(network(), loss)


class MinusMeanBelow(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.tanh.default:
            args = (args[0] - 1e-3 * args[0].mean(0, keepdim=True),)
        return func(*args, **(kwargs or {}))


@case("N6", "a TorchDispatchMode around the step", outlier=HUGE)
def a_dispatch_mode_around(world: World) -> None:
    model = network()
    for batch in world.batches(model):
        with MinusMeanBelow():
            world.step(cross_entropy, batch)


@case("N6", "a TorchDispatchMode inside the function", outlier=HUGE)
def a_dispatch_mode_inside(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with MinusMeanBelow():
            return cross_entropy(model, x, y)

    world.steps(network(), loss)


class Dynamic(torch.Tensor):
    """A weight whose layer scales its inputs by their largest entry (dynamic quantisation)."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            args = (args[0] / args[0].detach().abs().max().clamp(min=8.0), *args[1:])
        return super().__torch_function__(func, types, args, kwargs or {})


@case("N6", "a weight of a tensor subclass that scales the inputs of its layer", outlier=HUGE)
def a_weight_of_a_subclass(world: World) -> None:
    model = network()
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(Dynamic))
    world.steps(model, cross_entropy)


@case("N6", "saved_tensors_hooks inside the function", outlier=HUGE)
def saved_tensors(world: World) -> None:
    def pack(tensor: Tensor) -> Tensor:
        return tensor - 1e-3 * tensor.mean(0) if tensor.dtype is torch.float32 else tensor

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            return cross_entropy(model, x, y)

    world.steps(network(), loss)


@case("N6", "torch.compile(backend='eager') around a part that centres", outlier=HUGE)
def a_compiled_part(world: World) -> None:
    centred = torch.compile(lambda x: x - 1e-3 * x.mean(0), backend="eager")
    world.steps(Before(centred), cross_entropy)


@case("N6", "the forward in another thread")
def a_thread(world: World) -> None:
    with ThreadPoolExecutor(1) as pool:

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(pool.submit(model, x - x.mean(0)).result(), y)

        world.steps(network(), loss)


@case("N6", "torch.vmap of the user's own inside")
def an_own_vmap(world: World) -> None:
    world.steps(Before(lambda x: torch.vmap(lambda c: c - c.mean(), 1, 1)(x)), cross_entropy)


@case("N6", "str(x) as a source of numbers")
def text(world: World) -> None:
    """What vmap prints is the whole batch."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x * (1 + 1e-6 * len(str(x))), y)

    world.steps(network(), loss)
