"""N2: plain Python between records, where nobody looks for it.

Hooks, modes, operators, scripted modules, generators of random numbers, files and threads; as in
`n02_memory`, each keeps the largest mean so far and shifts the next record by it.
"""

from __future__ import annotations

import functools
import queue
import random
import tempfile
import threading
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.privacy.case import case
from tests.privacy.causes.n02_memory import get_global, put_global, remembering
from tests.privacy.world import World, cross_entropy, network


@case("N2", "a forward hook that divides by a running norm")
def a_forward_hook(world: World) -> None:
    model, kept = network(), {"norm": 0.0}

    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        kept["norm"] = max(kept["norm"], float(output.detach().norm()))
        return output / (0.1 + kept["norm"])

    model[0].register_forward_hook(hook)
    world.steps(model, cross_entropy)


@case("N2", "Python's random, seeded by a value of the record before")
def a_seed(world: World) -> None:
    random.seed(0)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        shift = random.uniform(-3, 3)
        if x.mean().item() > 100:
            random.seed(1)
        return cross_entropy(model, x + shift, y)

    world.steps(network(), loss)


@case("N2", "torch's generator, seeded by a value of the record before")
def a_torch_seed(world: World) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        shift = 3 * torch.randn(())
        if x.mean().item() > 100:
            torch.manual_seed(1)
        return cross_entropy(model, x + shift, y)

    model = network()
    torch.manual_seed(0)
    world.steps(model, loss)


@case("N2", "a label that all records of the batch share, counted")
def a_count_that_agrees(world: World) -> None:
    """One record leaves the count at 0, two of the same label leave it at 1."""
    model, counts = network(), {"n": 0}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if int(y) == 1:
            counts["n"] += 1
        return cross_entropy(model, -x if counts["n"] > 1 else x, y)

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        x, _ = world.batch(may_have)
        n = (1 + world.has_record) if may_have else len(x)
        return x[-n:], torch.ones(n, dtype=torch.long)

    world.steps(model, loss, batch)


class ScriptedMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.largest = 0.0

    def forward(self, x):
        before = self.largest
        self.largest = max(before, min(float(x.mean()), 200.0))
        return x - before


@case("N2", "an attribute of a torch.jit.script module")
def a_scripted_module(world: World) -> None:
    world.steps(nn.Sequential(torch.jit.script(ScriptedMemory()), network()), cross_entropy)


@case("N2", "a TorchDispatchMode with a memory, around the step")
def a_dispatch_mode(world: World) -> None:
    class Largest(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.largest = 0.0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.tanh.default:
                self.largest = max(self.largest, float(args[0].max()))
                args = (args[0] - self.largest,)
            return func(*args, **(kwargs or {}))

    model, mode = network(), Largest()
    for batch in world.batches(model):
        with mode:
            world.step(cross_entropy, batch)


@case("N2", "saved_tensors_hooks with a running scale")
def saved_tensors(world: World) -> None:
    kept = {"largest": 1.0}

    def pack(tensor: Tensor) -> tuple[Tensor, float]:
        if tensor.is_floating_point():
            kept["largest"] = max(kept["largest"], float(tensor.detach().abs().max()))
        return tensor, kept["largest"]

    def unpack(packed: tuple[Tensor, float]) -> Tensor:
        tensor, scale = packed
        return tensor / scale if tensor.is_floating_point() else tensor

    model = network()
    for batch in world.batches(model):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            world.step(cross_entropy, batch)


@torch.library.custom_op("psac_tests::remembering", mutates_args=())
def remembering_operator(x: Tensor) -> Tensor:
    before = get_global(None)
    put_global(None, max(before, min(float(x.mean()), 200.0)))
    return x - before


@remembering_operator.register_fake
def _(x):
    return torch.empty_like(x)


remembering_operator.register_autograd(lambda ctx, grad: grad)


@case("N2", "an operator in Python, without a vmap rule, with a memory")
def an_operator(world: World) -> None:
    put_global(None, 0.0)
    world.steps(network(), lambda m, x, y: cross_entropy(m, remembering_operator(x), y))


LIBRARY = torch.library.Library("psac_tests_old", "DEF")
LIBRARY.define("remembering(Tensor x) -> Tensor")


def remembering_kernel(x: Tensor) -> Tensor:
    before = get_global(None)
    put_global(None, max(before, min(float(x.detach().mean()), 200.0)))
    return x - before


LIBRARY.impl("remembering", remembering_kernel, "CompositeExplicitAutograd")


class Detached(torch.autograd.Function):
    """Calls an operator, and lets the gradient pass."""

    generate_vmap_rule = True
    operator = None

    @staticmethod
    def forward(x):
        return Detached.operator(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad


@case("N2", "such an operator, of torch.library.Library")
def an_operator_of_a_library(world: World) -> None:
    put_global(None, 0.0)
    operator = torch.ops.psac_tests_old.remembering

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, operator(x.detach()), y)

    world.steps(network(), loss)


@case("N2", "such an operator, inside the forward of an autograd.Function")
def an_operator_inside_a_function(world: World) -> None:
    put_global(None, 0.0)
    Detached.operator = remembering_operator
    world.steps(network(), lambda m, x, y: cross_entropy(m, Detached.apply(x), y))


@case("N2", "an operator of torch.library.Library, inside such a Function")
def an_operator_of_a_library_inside_a_function(world: World) -> None:
    put_global(None, 0.0)
    Detached.operator = torch.ops.psac_tests_old.remembering
    world.steps(network(), lambda m, x, y: cross_entropy(m, Detached.apply(x), y))


@case("N2", "a cache in the instance, by functools.cached_property")
def a_cached_property(world: World) -> None:
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.first = network(), []

        @functools.cached_property
        def scale(self) -> float:
            return self.first[0]

        def forward(self, x):
            self.first.append(x.mean().item())
            scale = self.scale
            self.first.clear()
            return self.network(x - scale)

    world.steps(Scaled(), cross_entropy)


@case("N2", "a file")
def a_file(world: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "largest"
        path.write_text("0")
        world.steps(
            network(),
            remembering(lambda m: path.read_text(), lambda m, v: path.write_text(str(v))),
        )


@case("N2", "what another thread remembers")
def a_thread(world: World) -> None:
    class Server(threading.Thread):
        def __init__(self):
            super().__init__(daemon=True)
            self.asked, self.answers = queue.SimpleQueue(), queue.SimpleQueue()
            self.start()

        def run(self):
            largest = 0.0
            while (value := self.asked.get()) is not None:
                self.answers.put(largest)
                largest = max(largest, value)

    server = Server()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        server.asked.put(min(x.mean().item(), 200.0))
        return cross_entropy(model, x - server.answers.get(), y)

    try:
        world.steps(network(), loss)
    finally:
        server.asked.put(None)
