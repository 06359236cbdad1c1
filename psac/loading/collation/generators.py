"""The random generators that a function may draw from, with their states.

These are the global ones of torch (CPU), numpy and `random`, and every `torch.Generator`,
`numpy.random.Generator`, `numpy.random.RandomState` and `random.Random` that the function reaches
through its attributes, closure, arguments and the globals it names.  Not included: generators on a
GPU, those a call creates itself, and the operating system's entropy.

>>> import random, torch
>>> generators = generators_of(lambda: random.random() + torch.rand(()))
>>> states = saved(generators)
>>> first = random.random()
>>> restore(generators, states)
>>> random.random() == first
True
"""

from __future__ import annotations

import functools
import gc
import pickle
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
SKIPPED = (type, types.ModuleType, torch.Tensor, np.ndarray, str, int, float, random.SystemRandom)
REACH = 2000  # objects that are looked at


def generators_of(function: Any) -> list[Any]:
    """The global generators, then those that `function` reaches, nearest first."""
    generators: dict[int, Any] = {}
    seen: dict[int, Any] = {}  # holds what it has seen, else an id could come again
    waiting = deque(
        [
            torch.default_generator,
            np.random.mtrand._rand,  # pyright: ignore[reportPrivateUsage]
            random._inst,  # pyright: ignore[reportPrivateUsage]
            function,
        ]
    )
    while waiting and len(seen) < REACH:
        thing = waiting.popleft()
        if thing is None or id(thing) in seen or isinstance(thing, SKIPPED):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, KINDS):
            generators[id(thing)] = thing
        else:
            waiting.extend(islice(_neighbours(thing), REACH))
    return list(generators.values())


def _neighbours(thing: Any) -> Iterator[Any]:
    if isinstance(thing, types.FunctionType):
        yield from (thing.__defaults__ or ())
        yield from (thing.__kwdefaults__ or {}).values()
        yield from gc.get_referents(*(thing.__closure__ or ()))  # empty cells have none
        yield from (thing.__globals__.get(name) for name in _names(thing.__code__))
    elif isinstance(thing, (types.MethodType, types.BuiltinMethodType)):
        yield from (thing.__self__, getattr(thing, "__func__", None))
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set)):
        yield from thing
    yield from getattr(thing, "__dict__", {}).values()
    for kind in type(thing).__mro__:
        yield from (item for item in vars(kind).values() if isinstance(item, types.FunctionType))


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names in a function and in the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def saved(generators: list[Any]) -> list[bytes]:
    """Their states; two are equal if and only if the same numbers come next."""
    return [pickle.dumps(_state(generator)) for generator in generators]


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    return generator.getstate()


def restore(generators: list[Any], states: list[bytes]) -> None:
    """Puts each generator back to its saved state."""
    for generator, state in zip(generators, map(pickle.loads, states), strict=True):
        if isinstance(generator, torch.Generator):
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        else:
            generator.setstate(state)
