"""A forward that leaves no trace and has no randomness: for probes and proofs.

Inside `sandbox(model)`
- buffers are copies, so running statistics and counters stay as they were;
- the random generators of torch are restored afterwards;
- random operations give constants (dropout keeps everything, normal draws are zero), so that a
  sample alone and the same sample in a batch see the same network. This happens below autograd:
  the graph keeps its shape;
- with `perturb`, parameters are copies moved a little, so that weights that start at zero hide
  nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

_CONSTANT = {
    aten.bernoulli_.float: 1.0,
    aten.bernoulli_.Tensor: 1.0,
    aten.normal_.default: 0.0,
    aten.uniform_.default: 0.5,
    aten.exponential_.default: 1.0,
    aten.random_.default: 0.0,
    aten.random_.to: 0.0,
    getattr(aten.random_, "from"): 0.0,
    aten.log_normal_.default: 1.0,
    aten.cauchy_.default: 0.0,
    aten.geometric_.default: 1.0,
}
_DRAWS = {"rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0, "normal": 0.0}
_DROPOUT_ARGUMENTS = ("dropout_p", "dropout")


class Quiet(TorchDispatchMode):
    """Replaces random draws by constants; two runs on the same values give the same result."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _CONSTANT:
            return args[0].fill_(_CONSTANT[func])
        if func is aten.native_dropout.default:
            return args[0] / max(1 - args[1], 1e-6), torch.ones_like(args[0], dtype=torch.bool)
        if func in (aten.bernoulli.default, aten.bernoulli.p):
            return torch.ones_like(args[0])
        name = func.overloadpacket.__name__
        if name in _DRAWS:
            return func(*args, **kwargs).fill_(_DRAWS[name])
        if name in ("randint", "randint_like"):
            places = [argument.name for argument in func._schema.arguments]
            low = args[places.index("low")] if "low" in places else 0
            return func(*args, **kwargs).fill_(low)
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


@contextlib.contextmanager
def sandbox(
    model: nn.Module, perturb: bool = False, quiet: bool = True
) -> Iterator[dict[int, Tensor]]:
    """Yields id(stand-in) -> parameter for parameters that were exchanged."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    stand_ins: dict[int, Tensor] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(exchanged(model, perturb, stand_ins))
        stack.enter_context(torch.enable_grad())
        if quiet:
            stack.enter_context(Quiet())
        yield stand_ins


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
