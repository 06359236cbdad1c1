"""S4: records that meet in the backward alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, network

HUGE = 1e6


def identity(backward):
    """An autograd.Function that does nothing forwards."""

    class Identity(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    Identity.backward = staticmethod(backward)
    return Identity


def behind(function) -> tuple[nn.Module, object]:
    """A network whose outputs pass the function, and their squares as its loss."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return function(model(x)).square().mean() + 0 * y.sum()

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), loss


@case("S4", "grad - 1e-3 * grad.mean(0) in a Function with generate_vmap_rule", outlier=HUGE)
def a_mean_of_gradients(world: World) -> None:
    world.steps(*behind(identity(lambda ctx, g: g - 1e-3 * g.mean(0)).apply))


@case("S4", "the gradient over its largest entry, of all records", outlier=HUGE)
def a_scaled_gradient(world: World) -> None:
    world.steps(*behind(identity(lambda ctx, g: g / g.abs().max().clamp(min=1.0)).apply))


class OldStyle(torch.autograd.Function):
    """As they were written before setup_context."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0)


@case("S4", "a Function in the old style, without setup_context")
def an_old_function(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(OldStyle.apply(model(x)), y)

    world.steps(network(), loss)


class OwnRule(torch.autograd.Function):
    """Its vmap rule sees the batch."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return OwnRule.apply(grad)

    @staticmethod
    def vmap(info, in_dims, x):
        return x - 1e-3 * x.mean(in_dims[0], keepdim=True), in_dims[0]


@case("S4", "a Function with a vmap rule of its own, called by the user", outlier=HUGE)
def an_own_rule(world: World) -> None:
    world.steps(*behind(OwnRule.apply))


@case("S4", "the same, called within the backward of another Function", outlier=HUGE)
def an_own_rule_in_a_backward(world: World) -> None:
    world.steps(*behind(identity(lambda ctx, g: OwnRule.apply(g)).apply))


@torch.library.custom_op("psac_tests::mixed_gradient", mutates_args=())
def mixed_gradient(x: Tensor) -> Tensor:
    return x.clone()


@mixed_gradient.register_fake
def _(x):
    return torch.empty_like(x)


@mixed_gradient.register_vmap
def _(info, in_dims, x):
    return x - 1e-3 * x.mean(in_dims[0], keepdim=True), in_dims[0]


@torch.library.custom_op("psac_tests::passed_on", mutates_args=())
def passed_on(x: Tensor) -> Tensor:
    return x.clone()


@passed_on.register_fake
def _(x):
    return torch.empty_like(x)


passed_on.register_autograd(lambda ctx, grad: mixed_gradient(grad))


@case("S4", "an operator with register_vmap, called within a Function's backward", outlier=HUGE)
def an_operator_in_a_backward(world: World) -> None:
    world.steps(*behind(identity(lambda ctx, g: mixed_gradient(g)).apply))


@case("S4", "an operator with register_vmap, in the backward of another operator", outlier=HUGE)
def an_operator_in_the_backward_of_another(world: World) -> None:
    world.steps(*behind(passed_on))


@case("S4", "the largest gradient so far, remembered by the class of a Function")
def a_memory_in_a_backward(world: World) -> None:
    class Scaled(torch.autograd.Function):
        largest = 0.0

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            Scaled.largest = max(Scaled.largest, float(grad.abs().max()))
            return grad / (1e-2 + Scaled.largest)

    model, loss = behind(Scaled.apply)
    world.steps(model, loss)


@case("S4", "a hook on a tensor inside the function that subtracts the mean")
def a_tensor_hook(world: World) -> None:
    def function(out: Tensor) -> Tensor:
        out.register_hook(lambda g: g - g.mean(0))
        return out

    world.steps(*behind(function))
