"""S11: layouts chosen by chance, hooks that clamp, a backward of the user's own."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


@case("S11", "features laid out as [B*T] or as [T*B], by chance")
def a_random_layout(world: World) -> None:
    draws = random.Random(0)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if draws.random() < 0.5:
            return cross_entropy(model, x.T.reshape(-1).view(-1, 4), y)
        return cross_entropy(model, x.reshape(-1).view(-1, 4), y)

    world.steps(network(), loss)


@case("S11", "a transpose that mixes batch and features: x.T.reshape(x.shape)")
def a_wrong_reshape(world: World) -> None:
    world.steps(network(), lambda m, x, y: cross_entropy(m, x.T.reshape(x.shape), y))


@case("S11", "a hook on a parameter that clamps its gradient")
def a_clamp_hook(world: World) -> None:
    model = network()
    model[0].weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    world.steps(model, cross_entropy)


@case("S11", "a full backward hook on a module")
def a_module_hook(world: World) -> None:
    model = network()
    model[2].register_full_backward_hook(lambda m, i, o: tuple(g * 10 for g in i))
    world.steps(model, cross_entropy)


@case("S11", "a backward hook on all modules")
def a_global_hook(world: World) -> None:
    handle = nn.modules.module.register_module_full_backward_hook(lambda m, i, o: None)
    try:
        world.steps(network(), cross_entropy)
    finally:
        handle.remove()


@case("S11", "a hook that fires after the gradient is accumulated")
def a_hook_after_accumulation(world: World) -> None:
    model = network()
    model[0].weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(10))
    world.steps(model, cross_entropy)


@case("S11", "torch.autograd.backward([loss]) in the loop")
def an_own_backward(world: World) -> None:
    with world.training(network()) as training:
        for batch in training.batches():
            torch.autograd.backward([cross_entropy(training.private.model, *batch)])
            training.private.step(cross_entropy, batch)


@case("S11", "loss.backward() and optimizer.step() in the loop")
def an_own_step(world: World) -> None:
    with world.training(network()) as training:
        for batch in training.batches():
            loss = F.cross_entropy(training.private.model(batch[0]).detach(), batch[1])
            training.private.optimizer.step()
            assert loss.isfinite()


@case("S11", "backward inside the loss function")
def a_backward_inside(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value = cross_entropy(model, x, y)
        value.backward(retain_graph=True)
        return value

    world.steps(network(), loss)


@case("S11", "gradients set by hand before the step")
def gradients_by_hand(world: World) -> None:
    with world.training(network()) as training:
        for x, y in training.batches():
            for p in training.private.model.parameters():
                p.grad = torch.full_like(p, float(x.mean()))
            training.private.step(cross_entropy, (x, y))


@case("S11", "model(model(x))")
def a_model_of_itself(world: World) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    world.steps(model, lambda m, x, y: F.cross_entropy(m(m(x)), y))


@case("S11", "the same parameter as matrix, as bias and as embedding")
def a_shared_parameter(world: World) -> None:
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            rows = F.embedding((x > 0).long(), self.weight).mean(1)
            return F.linear(x, self.weight, self.weight[0]) + rows @ self.weight.T

    world.steps(Shared(), lambda m, x, y: F.cross_entropy(m(x), y))
