"""S9: what a call leaves behind, where the next one reads it.

Under vmap numbers cannot be had, but tensors can be kept: record k of one batch would meet record k
of the next.  So a record is replaced here by another one, and the next step is what counts.
"""

from __future__ import annotations

import collections

import torch
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


class Keeping(nn.Module):
    """`keep(self, x)` returns what it kept before, or None, and keeps something of x."""

    def __init__(self, keep, **start):
        super().__init__()
        self.network, self.keep, self.late = network(), keep, False
        for name, value in start.items():
            setattr(self, name, value)

    def forward(self, x):
        before = self.keep(self, x)
        return self.network(x if before is None else x + before)


def keeping(world: World, model: nn.Module) -> None:
    """Batches of equal size, so that what is kept fits the next one."""
    world.replaced = True
    for batch in world.batches(model):
        world.step(cross_entropy, batch)


def attribute(model, x):
    before, model.last = model.last, x.detach()
    return before


@case("S9", "self.last = x.detach(), added to the next batch")
def an_attribute(world: World) -> None:
    keeping(world, Keeping(attribute, last=None))


@case("S9", "a long list of hidden states")
def a_list(world: World) -> None:
    def keep(model, x):
        model.states.append(x.detach().clone())
        return model.states[-2] if len(model.states) > 1 else None

    keeping(world, Keeping(keep, states=[]))


@case("S9", "nested dictionaries")
def dictionaries(world: World) -> None:
    def keep(model, x):
        inner = model.memory["a"]["b"]
        before, inner["x"] = inner.get("x"), x + 0
        return before

    keeping(world, Keeping(keep, memory={"a": {"b": {}}}))


@case("S9", "numpy arrays")
def arrays(world: World) -> None:
    def keep(model, x):
        before, model.array = model.array, x.numpy().copy()
        return None if before is None else torch.from_numpy(before)

    keeping(world, Keeping(keep, array=None))


@case("S9", "a deque in a closure")
def a_deque(world: World) -> None:
    states = collections.deque(maxlen=2)

    def keep(model, x):
        states.append(x * 1)
        return states[0] if len(states) > 1 else None

    keeping(world, Keeping(keep))


@case("S9", "a buffer that is assigned anew")
def a_buffer(world: World) -> None:
    model = Keeping(attribute)
    model.register_buffer("last", torch.zeros(1, 4))
    keeping(world, model)


@case("S9", "a running mean in a buffer, in place")
def a_running_mean(world: World) -> None:
    def keep(model, x):
        model.mean.mul_(0.5).add_(0.5 * x.detach().mean(0))
        return -model.mean

    model = Keeping(keep)
    model.register_buffer("mean", torch.zeros(4))
    keeping(world, model)


class OnTheClass(nn.Module):
    """Keeps what a function makes of x on its class, once it is `late`."""

    last = None

    def __init__(self, make):
        super().__init__()
        self.network, self.make, self.late = network(), make, False
        OnTheClass.last = None

    def forward(self, x):
        before = OnTheClass.last
        if self.late:
            OnTheClass.last = self.make(x)
        return self.network(x if before is None else x + before)


def late(world: World, model: nn.Module) -> None:
    """Two public batches first; then the model begins to keep things."""
    world.replaced = True
    world.order = "bbabab"
    for number, batch in enumerate(world.batches(model)):
        model.late = number > 1
        world.step(cross_entropy, batch)


@case("S9", "self.last = x.detach(), from the third step on")
def a_late_attribute(world: World) -> None:
    late(world, Keeping(lambda model, x: attribute(model, x) if model.late else None, last=None))


@case("S9", "self.last = x.T, from the third step on")
def a_late_transpose(world: World) -> None:
    def keep(model, x):
        before = model.last
        if model.late:
            model.last = x.T
        return None if before is None else before.T

    late(world, Keeping(keep, last=None))


@case("S9", "class attribute x.mT, kept from the third step on")
def an_attribute_of_a_tensor(world: World) -> None:
    late(world, OnTheClass(lambda x: x.mT.mT))


@case("S9", "class attribute torch.func.grad(f)(x), kept from the third step on")
def a_gradient(world: World) -> None:
    late(world, OnTheClass(torch.func.grad(lambda a: a.square().sum())))


@case("S9", "class attribute torch.vmap(f)(x), kept from the third step on")
def a_mapped_value(world: World) -> None:
    late(world, OnTheClass(lambda x: torch.vmap(lambda a: 2 * a)(x)))


@case("S9", "class attribute x.detach(), kept from the third step on")
def a_detached_value(world: World) -> None:
    late(world, OnTheClass(lambda x: x.detach()))


class Keeper(torch.autograd.Function):
    generate_vmap_rule = True
    last = None

    @staticmethod
    def forward(x):
        before, Keeper.last = Keeper.last, x * 1
        return x * 1 if before is None else x + before

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad


@case("S9", "the class of an autograd.Function keeps x, from the third step on")
def a_function(world: World) -> None:
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.late, Keeper.last = network(), False, None

        def forward(self, x):
            return self.network(Keeper.apply(x) if self.late else x)

    late(world, Late())


@case("S9", "a forward hook stores the activations of a layer")
def a_forward_hook(world: World) -> None:
    model, stored = network(), {}

    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        before, stored["h"] = stored.get("h"), output.detach()
        return output if before is None else output + before

    model[0].register_forward_hook(hook)
    keeping(world, model)


@case("S9", "a parametrization reads what a forward has stored")
def a_parametrization(world: World) -> None:
    model, stored = network(), {}

    class Shifted(nn.Module):
        def forward(self, weight):
            return weight + stored["x"].mean() if "x" in stored else weight

    torch.nn.utils.parametrize.register_parametrization(model[0], "weight", Shifted())

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = cross_entropy(model, x, y)
        stored["x"] = x.detach()
        return out

    world.replaced = True
    world.steps(model, loss)
