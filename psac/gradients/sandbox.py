"""A forward that leaves no trace and has no randomness: for probes and proofs.

Inside `sandbox(model)`
- buffers and attributes are copies, so running statistics and counters stay as they were;
- the random generators of torch, Python and numpy are restored afterwards;
- random operations give constants (dropout keeps everything, other draws are in the middle, or low
  or high if so asked: `draw`), so that a sample alone and the same sample in a batch see the same
  network. This happens below autograd: the graph keeps its shape;
- with `perturb`, parameters are copies moved a little, so that weights that start at zero hide
  nothing.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .places import kept

aten = torch.ops.aten

MIDDLE, LOW, HIGH = 0.5, 0.01, 0.99  # what a uniform draw from [0, 1] gives
# With these seeds the first such draw of Python and of numpy is about that.
_SEEDS = {MIDDLE: (50, 79), LOW: (336, 252), HIGH: (153, 527)}
_PATIENCE = 1000  # draws; a loop that waits for another number gets one in the end
_NORMAL = {MIDDLE: 0.0, LOW: -2.0, HIGH: 2.0}
# In place, by the uniform number u.
_FILLS = {
    aten.normal_.default: lambda u: _NORMAL[u],
    aten.uniform_.default: lambda u: u,
    aten.exponential_.default: lambda u: 1.0 if u == MIDDLE else -math.log1p(-u),
    aten.log_normal_.default: lambda u: math.exp(_NORMAL[u]),
    aten.cauchy_.default: lambda u: _NORMAL[u],
    aten.geometric_.default: lambda u: 1.0 if u != HIGH else 3.0,
    aten.random_.default: lambda u: float(u == HIGH),
}
_DRAWS = {
    "rand": lambda u: u,
    "rand_like": lambda u: u,
    "randn": lambda u: _NORMAL[u],
    "randn_like": lambda u: _NORMAL[u],
    "normal": lambda u: _NORMAL[u],
}
_BERNOULLI = (aten.bernoulli_.float, aten.bernoulli_.Tensor)
_DROPOUT_ARGUMENTS = ("dropout_p", "dropout")


class Quiet(TorchDispatchMode):
    """Replaces random draws by constants; two runs on the same values give the same result.

    `drew` says whether there was any but dropout, which another `draw` would have changed.
    """

    def __init__(self, draw: float = MIDDLE):
        super().__init__()
        self.draw, self.count = draw, 0

    @property
    def drew(self) -> bool:
        return self.count > 0

    def _next(self) -> float:
        self.count += 1
        if self.count <= _PATIENCE:
            return self.draw
        return (MIDDLE, LOW, HIGH)[self.count % 3]

    def _coin(self, like: Tensor) -> float:
        """Dropout keeps all; a coin for the whole batch falls as it was asked to."""
        return float(self._next() != HIGH) if like.dim() == 0 else 1.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _FILLS:
            return args[0].fill_(_FILLS[func](self._next()))
        if func in _BERNOULLI:
            return args[0].fill_(self._coin(args[0]))
        if func is aten.native_dropout.default:
            return args[0] / max(1 - args[1], 1e-6), torch.ones_like(args[0], dtype=torch.bool)
        if func in (aten.bernoulli.default, aten.bernoulli.p):
            return torch.full_like(args[0], self._coin(args[0]))
        name = func.overloadpacket.__name__
        if name in _DRAWS:
            return func(*args, **kwargs).fill_(_DRAWS[name](self._next()))
        if name in ("randint", "randint_like", "random_"):
            given = dict(zip([a.name for a in func._schema.arguments], args, strict=False))
            low = given.get("low", given.get("from", 0)) or 0
            high = given.get("high", given.get("to"))
            last = low if high is None else max(low, high - 1)
            u = self._next()
            value = {MIDDLE: low, LOW: low, HIGH: last}[u]
            return (args[0] if name == "random_" else func(*args, **kwargs)).fill_(value)
        if name == "randperm":  # not the identity: samples that a shuffle mixes must be seen
            settings = {k: v for k, v in kwargs.items() if k != "generator"}
            return aten.arange.default(args[0], **settings).roll(1)
        args = self._without_dropout(func, list(args), kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def _without_dropout(func: Any, args: list, kwargs: dict) -> list:
        for place, argument in enumerate(func._schema.arguments):
            if argument.name in _DROPOUT_ARGUMENTS and isinstance(
                argument.default_value, (float, type(None))
            ):
                if place < len(args) and isinstance(args[place], float):
                    args[place] = 0.0
                elif argument.name in kwargs:
                    kwargs[argument.name] = 0.0
        return args


@dataclass
class Traces:
    """What a forward in the sandbox would have left behind."""

    stand_ins: dict[int, Tensor] = field(default_factory=dict)  # id(stand-in) -> parameter
    drew: bool = False  # it asked for random numbers that another `draw` would have changed


@contextlib.contextmanager
def sandbox(
    model: nn.Module, perturb: bool = False, quiet: bool = True, draw: float = MIDDLE
) -> Iterator[Traces]:
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    traces, silence = Traces(), Quiet(draw)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(seeded(draw, traces))
        stack.enter_context(exchanged(model, perturb, traces.stand_ins))
        stack.enter_context(kept(model))
        stack.enter_context(torch.enable_grad())
        if quiet:
            stack.enter_context(silence)
        yield traces
        traces.drew |= silence.drew


@contextlib.contextmanager
def seeded(draw: float, traces: Traces) -> Iterator[None]:
    """The generators of Python, and of numpy if it is there, start alike and are put back."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), numpy.random.get_state(legacy=False) if numpy else None
    random.seed(_SEEDS[draw][0])
    start = random.getstate()
    if numpy:
        numpy.random.seed(_SEEDS[draw][1])
        place = numpy.random.get_state(legacy=False)["state"]["pos"]
    try:
        yield
    finally:
        traces.drew |= random.getstate() != start
        random.setstate(before[0])
        if numpy:
            traces.drew |= numpy.random.get_state(legacy=False)["state"]["pos"] != place
            numpy.random.set_state(before[1])


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """What forwards write in here is gone afterwards, however often they run."""
    with exchanged(model, False, {}), kept(model):
        yield


@contextlib.contextmanager
def exchanged(model: nn.Module, perturb: bool, stand_ins: dict[int, Tensor]) -> Iterator[None]:
    """Puts copies in the place of buffers (and of parameters) and puts the originals back."""
    undo: list[tuple[dict, str, Any]] = []
    copies: dict[int, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    try:
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    undo.append((module._buffers, name, buffer))
                    module._buffers[name] = copies.setdefault(id(buffer), buffer.detach().clone())
            if not perturb:
                continue
            for name, parameter in module._parameters.items():
                if (
                    parameter is None
                    or not parameter.requires_grad
                    or isinstance(module, nn.RNNBase)
                ):
                    continue
                undo.append((module._parameters, name, parameter))
                if id(parameter) not in copies:
                    copies[id(parameter)] = moved = perturbed(parameter, generator)
                    stand_ins[id(moved)] = parameter
                module._parameters[name] = copies[id(parameter)]  # type: ignore[assignment]
        yield
    finally:
        for store, name, original in reversed(undo):
            store[name] = original


def perturbed(parameter: Tensor, generator: torch.Generator) -> nn.Parameter:
    noise = torch.randn(parameter.shape, generator=generator) * 0.02
    return nn.Parameter(parameter.detach() + noise.to(parameter))
