"""Everything that a function can change: the model, and what the function itself reaches.

Records that are computed one at a time run plain Python, which may remember one record and show it
to the next: a number in an attribute, an entry of a list, a buffer.  So each record starts from the
same `State`, and all must leave the same one: a counter does, a running mean of inputs does not.
"""

from __future__ import annotations

import array
import copy
import functools
import hashlib
import operator
import os
import random
from collections import deque
from collections.abc import Callable, Container
from types import FunctionType, GeneratorType, ModuleType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from psac.gradients.errors import PrivacyError, warn
from psac.gradients.isolation.checksums import checksums
from psac.gradients.isolation.reach import (
    BUFFERS,
    CONTAINERS,
    HOOKS_ON_ALL,
    OF_PYTHON,
    STORES,
    Cached,
    Reach,
    globals_in,
    grad_of,
    inside,
    is_iterator,
    is_library,
    is_long,
    is_plain,
    slots_of,
)
from psac.gradients.isolation.settings import NAMES, settings
from psac.gradients.isolation.watch import storage_of

SET_BY_TORCH = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # on the first use of an operator
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
MISSING: Any = object()


class State:
    """What is reachable from some roots, as it is now; `restore` brings it back."""

    def __init__(self, roots: dict[str, Any], private: Container[int] = ()) -> None:
        """Memory of `private` records is passed over: nobody may read or write it anyway."""
        self._contents: list[tuple[type, Any, Any]] = []  # containers, and a copy of each
        self._bindings: list[tuple[Any, dict[str, Any]]] = []  # attributes that are in no dict
        self._values: list[tuple[Any, Any]] = []  # tensors and arrays, and a copy of each
        self._puts: list[tuple[Callable[[Any], Any], Any]] = []  # and what each is called with
        self._caches: list[Any] = []  # of functools: emptied, not restored
        self.leaves: dict[str, Any] = {}  # by path: a value that can be compared
        self._environment, self._settings = dict(os.environ), settings()
        ours = {k: v for k, v in self._environment.items() if k not in SET_BY_TORCH}
        now = dict(zip(NAMES, self._settings, strict=True))
        self.reach = Reach({**roots, **HOOKS_ON_ALL, "os.environ": ours, "settings": now})
        for path, value in self.reach.found:
            if isinstance(value, Tensor) and storage_of(value) in private:
                continue
            self.leaves[path] = leaf_of(value)
            self._keep(value)

    def _keep(self, value: Any) -> None:
        """What is needed to restore it."""
        if isinstance(value, Tensor):
            flags = {"requires_grad": value.requires_grad} if value.is_leaf else {}
            self._bindings.append((value, flags | {"grad": grad_of(value)} if flags else {}))
            self._contents.append((dict, vars(value), dict(vars(value))))
            if not isinstance(value, nn.Parameter):
                self._values.append((value, value.detach().clone()))
        elif isinstance(value, (bytearray, array.array, np.ndarray)):
            self._values.append((value, copy.copy(value)))
        elif is_plain(value):
            return
        elif isinstance(value, Cached):
            self._caches.append(value)
        elif isinstance(value, GENERATORS):
            self._keep_generator(value)
        elif isinstance(value, torch.jit.ScriptModule):
            self._keep_scripted(value)
        elif not is_library(value):
            self._keep_parts(value)

    def _keep_parts(self, value: Any) -> None:
        """Of a container, an object, a class or a function."""
        kind = next((kind for kind in CONTAINERS if isinstance(value, kind)), None)
        if kind is not None:
            self._contents.append((kind, value, content_in(kind, value)))
        if isinstance(value, type):
            self._bindings.append((value, attributes_of(value)))
            return
        if isinstance(value, FunctionType):
            self._bindings += [(c, {"cell_contents": v}) for c, v in filled_cells(value)]
            named = {n: value.__globals__.get(n, MISSING) for n in globals_in(value.__code__)}
            self._bindings.append((value.__globals__, named))
        own = getattr(value, "__dict__", None)
        for store in (own, *(getattr(value, name, None) for name in stores_of(value))):
            if isinstance(store, dict):
                self._contents.append((dict, store, dict(store)))
        slots = slots_of(value)
        if slots:
            self._bindings.append((value, {n: getattr(value, n, MISSING) for n in slots}))

    def _keep_generator(self, value: Any) -> None:
        """A random generator of the user's own."""
        if isinstance(value, torch.Generator):
            put = value.set_state
        elif isinstance(value, np.random.Generator):
            put = functools.partial(setattr, value.bit_generator, "state")
        elif isinstance(value, random.SystemRandom):
            return
        else:
            put = value.set_state if isinstance(value, np.random.RandomState) else value.setstate
        self._puts.append((put, state_of(value)))

    def _keep_scripted(self, module: Any) -> None:
        for step, part in inside(module):
            if is_plain(part) and step.startswith("."):
                self._puts.append((functools.partial(module._c.setattr, step[1:]), part))

    def restore(self) -> None:
        for kind, container, content in self._contents:
            if same_items(kind, container, content):
                continue
            kind.clear(container)
            (kind.update if hasattr(kind, "update") else kind.extend)(container, content)
        for owner, content in self._bindings:
            bind(owner, content)
        if not self.has_environment():
            os.environ.clear()
            os.environ.update(self._environment)
        self.restore_values()

    def restore_values(self) -> None:
        """What is written in place, where containers hold what they held."""
        self.empty_caches()
        for put, state in self._puts:
            put(state)
        with torch.no_grad():
            for value, content in self._values:
                if isinstance(value, Tensor):
                    if value.shape != content.shape:
                        value.data = torch.empty_like(content)
                    value.data.copy_(content)
                elif isinstance(value, np.ndarray):
                    value[...] = content
                else:
                    value[:] = content

    def holds(self, private: Container[int]) -> bool:
        """Whether it holds memory of these records."""
        return any(storage_of(v) in private for v, _ in self._values if isinstance(v, Tensor))

    def retake(self) -> None:
        """Of tensors, their content now; everything else is as it was."""
        self._values = [
            (value, value.detach().clone() if isinstance(value, Tensor) else content)
            for value, content in self._values
        ]
        tensors = {path: value for path, value in self.reach.found if isinstance(value, Tensor)}
        for path in tensors.keys() & self.leaves.keys():
            self.leaves[path] = leaf_of(tensors[path])

    def empty_caches(self) -> None:
        for cache in self._caches:
            cache.cache_clear()

    def has_environment(self) -> bool:
        """Whether the variables of the environment and torch's settings are as they were."""
        return dict(os.environ) == self._environment and settings() == self._settings

    def difference(self, later: State) -> dict[str, Any]:
        """What is there later and was not the same before, by path; None for what is gone."""
        paths = self.leaves.keys() | later.leaves.keys()
        return {
            path: later.leaves.get(path)
            for path in sorted(paths)
            if self.leaves.get(path) != later.leaves.get(path)
        }


def leaf_of(value: Any) -> Any:
    """A content to compare with an earlier one; a kind, where parts have a content of their own."""
    if is_plain(value):
        return repr(value)
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.requires_grad, checksums([value])[0]
    if isinstance(value, BUFFERS):
        return hashlib.sha1(memoryview(value).cast("B")).hexdigest()
    if isinstance(value, np.ndarray):
        return value.shape, hashlib.sha1(value.tobytes()).hexdigest()
    if is_long(value):
        return hashlib.sha1(repr(value).encode()).hexdigest()
    if isinstance(value, GENERATORS) and not isinstance(value, random.SystemRandom):
        state = state_of(value)
        if isinstance(state, Tensor):
            return checksums([state])[0]
        return hashlib.sha1(repr(state).encode()).hexdigest()
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        local = {} if frame is None else frame.f_locals
        plain = {name: repr(part) for name, part in local.items() if is_plain(part)}
        return frame and frame.f_lasti, plain
    if is_iterator(type(value)):
        return repr(value.__reduce__())  # it moves on, and cannot be put back
    if isinstance(value, FunctionType) and not is_library(value):
        return value.__code__
    if isinstance(value, ModuleType):  # by its dict: torch.classes makes attributes when asked
        return type(value).__name__, vars(value).get("__name__")
    if isinstance(value, (type, FunctionType)):
        return type(value).__name__, value.__qualname__
    if isinstance(value, (dict, list, tuple, set, frozenset, deque)):
        return type(value).__name__, len(value)
    return type(value).__name__


def state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate()


def stores_of(value: Any) -> tuple[str, ...]:
    return STORES if isinstance(value, nn.Module) else ()


def content_in(kind: Any, container: Any) -> Any:
    """A plain copy, by the methods of `kind`: a class of the user's may do anything in its own."""
    if issubclass(kind, dict):
        return dict(kind.items(container))
    return set(container) if kind is set else list(kind.__iter__(container))


def same_items(kind: Any, container: Any, content: Any) -> bool:
    """Whether a container holds the objects that it held."""
    now = content_in(kind, container)
    if kind is set:
        return now == content
    if isinstance(now, dict):
        return list(now) == list(content) and all(map(operator.is_, now.values(), content.values()))
    return len(now) == len(content) and all(map(operator.is_, now, content))


def attributes_of(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if name not in OF_PYTHON}


def filled_cells(function: FunctionType) -> list[tuple[Any, Any]]:
    cells = function.__closure__ or ()
    return [(cell, content) for cell in cells if (content := content_of_cell(cell)) is not MISSING]


def content_of_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def bind(owner: Any, content: dict[str, Any]) -> None:
    """Attributes of an object, or globals of a module, as they were."""
    if type(owner) is dict:
        for name, value in content.items():
            if value is not MISSING:
                owner[name] = value
            else:
                owner.pop(name, None)
        return
    own = vars(owner) if isinstance(owner, type) else None
    for name, value in content.items():
        now = getattr(owner, name, MISSING) if own is None else own.get(name, MISSING)
        if now is not value:
            delattr(owner, name) if value is MISSING else setattr(owner, name, value)
    for name in () if own is None else own.keys() - content.keys() - OF_PYTHON:
        delattr(owner, name)


def tell_of_undone(left: dict[str, Any]) -> None:
    """All records have left the same, and made-up ones another."""
    warn(
        f"the loss function has changed {', '.join(sorted(left)[:5])}, and psac has undone it: "
        "records that branch on values, or are computed one at a time, may leave behind only what "
        "follows from none of them, such as a counter. Training may differ from plain torch's.",
        UserWarning,
    )


def refuse_memory(first: dict[str, Any], second: dict[str, Any]) -> NoReturn:
    """Two records, each from the same state, have left different ones."""
    paths = sorted(p for p in first.keys() | second.keys() if first.get(p) != second.get(p))
    raise PrivacyError(
        f"the loss function writes what it computed from a record to {', '.join(paths[:5])}, where "
        "the next one, and whoever has the model, can read it. Leave nothing of a record behind. "
        "What follows from the number of the step alone (a schedule, an iterator, a time) is not "
        "the function's to move: pass the number in, and change it outside, within "
        "`with private.public_change():`."
    )
