"""Everything that a function can change: the model, and what the function itself reaches.

Records that are computed one at a time run plain Python, which may remember one record and show it
to the next: a number in an attribute, an entry of a list, a buffer.  So each record starts from the
same `State`, and all must leave the same one: a counter does, a running mean of inputs does not.
"""

from __future__ import annotations

import array
import copy
import datetime
import functools
import hashlib
import os
import random
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterator
from numbers import Number
from types import FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._library.custom_ops import CustomOpDef

from .checksums import checksums
from .watch import parts_of, storage_of

PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range),
    *(torch.dtype, torch.device, torch.Size, np.generic, array.array, Number, datetime.date),
)
# Others may do anything when they are read or copied: their content is compared, not restored.
PLAIN_CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
# Of the standard library, and yet with things of the user's inside.
OPEN = (
    *(nn.Module, dict, list, set, tuple, deque, functools.partial, MethodType),
    *(threading.local, CustomOpDef, SimpleNamespace),
)
DEEPEST = 20


class State:
    """What is reachable from some roots, as it is now; `restore` brings it back."""

    def __init__(self, roots: dict[str, Any], private: Container[int] = ()) -> None:
        """Memory of `private` records is passed over: nobody may read or write it anyway."""
        self._private = private
        self._contents: list[tuple[Any, Any]] = []  # containers, and a shallow copy of each
        self._values: list[tuple[Any, Any]] = []  # tensors and arrays, and a copy of each
        self._generators: list[tuple[Callable[[Any], Any], Any]] = []
        self._caches: list[Any] = []  # of functools: emptied, not restored
        self.leaves: dict[str, Any] = {}  # by path: a value that can be compared
        self._seen: dict[int, str] = {}
        self._alive: list[Any] = []  # so that no id is used twice
        for name, root in {**roots, "os.environ": dict(os.environ)}.items():
            self._visit(name, root, 0)
        self._environment = dict(os.environ)

    def _visit(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, PLAIN):
            self.leaves[path] = repr(value)
            if isinstance(value, (bytearray, array.array)):
                self._values.append((value, copy.copy(value)))
            return
        if id(value) in self._seen or depth > DEEPEST:
            return
        self._seen[id(value)] = path
        self._alive.append(value)
        if isinstance(value, Tensor):
            self._visit_tensor(path, value)
        elif isinstance(value, np.ndarray):
            self.leaves[path] = (value.shape, hashlib.sha1(value.tobytes()).hexdigest())
            self._values.append((value, value.copy()))
        elif hasattr(value, "cache_clear") and hasattr(value, "__wrapped__"):
            self._caches.append(value)
            self._visit(f"{path}.__wrapped__", value.__wrapped__, depth + 1)
        elif isinstance(value, GeneratorType):
            frame = value.gi_frame
            self.leaves[path] = None if frame is None else frame.f_lasti
            self._visit(f"{path} (locals)", dict(frame.f_locals) if frame else {}, depth + 1)
        elif isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
            self.leaves[path] = repr(value.__reduce__())  # it moves on, and cannot be put back
        elif isinstance(value, (torch.Generator, np.random.Generator, random.Random)):
            self._visit_generator(path, value)
        elif isinstance(value, ModuleType) and not is_library(value):
            self._contents.append((vars(value), dict(vars(value))))
            for name, part in list(vars(value).items()):
                if not name.startswith("__"):
                    self._visit(f"{path}.{name}", part, depth + 1)
        elif isinstance(value, type) and not is_library(value):
            for name, part in list(vars(value).items()):
                if not name.startswith("__"):
                    self._visit(f"{path}.{name}", part, depth + 1)
        elif not isinstance(value, type) and not is_library(value):
            self._visit_container(path, value, depth)

    def _visit_generator(self, path: str, value: Any) -> None:
        """A random generator of the user's own."""
        if isinstance(value, torch.Generator):
            state, put = value.get_state(), value.set_state
        elif isinstance(value, random.Random):
            if isinstance(value, random.SystemRandom):
                return
            state, put = value.getstate(), value.setstate
        else:
            bits = value.bit_generator
            state, put = bits.state, functools.partial(setattr, bits, "state")
        self.leaves[path] = hashlib.sha1(repr(state).encode()).hexdigest()
        self._generators.append((put, state))

    def _visit_tensor(self, path: str, value: Tensor) -> None:
        if storage_of(value) in self._private:
            return
        self.leaves[path] = (tuple(value.shape), value.dtype, checksums([value])[0])
        if not isinstance(value, nn.Parameter):
            self._values.append((value, value.detach().clone()))

    def _visit_container(self, path: str, value: Any, depth: int) -> None:
        if type(value) in PLAIN_CONTAINERS:
            self._contents.append((value, copy.copy(value)))
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._contents.append((value.__dict__, dict(value.__dict__)))
        if isinstance(value, nn.Module):
            for store in (value._buffers, value._parameters, value._modules):
                # torch.jit has others
                if isinstance(store, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                    self._contents.append((store, dict(store)))
        parts = parts_of(value)
        scripted = isinstance(value, torch.jit.ScriptModule)
        if not scripted:
            parts.append((" (class)", type(value)))
        self.leaves[path] = (type(value).__name__, len(parts))
        for step, part in parts:
            self._visit(path + step, part, depth + 1)

    def restore(self) -> None:
        for container, content in self._contents:
            if same_items(container, content):
                continue
            container.clear()
            if isinstance(container, (list, deque)):
                container.extend(content)
            else:
                container.update(content)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        self.empty_caches()
        for put, state in self._generators:
            put(state)
        with torch.no_grad():
            for value, content in self._values:
                if isinstance(value, Tensor):
                    value.data.copy_(content)
                elif isinstance(value, np.ndarray):
                    value[...] = content
                else:
                    value[:] = content

    def empty_caches(self) -> None:
        for cache in self._caches:
            cache.cache_clear()

    def difference(self, later: State) -> dict[str, Any]:
        """What is there later and was not the same before, by path; None for what is gone."""
        paths = self.leaves.keys() | later.leaves.keys()
        return {
            path: later.leaves.get(path)
            for path in sorted(paths)
            if self.leaves.get(path) != later.leaves.get(path)
        }


def same_items(first: Any, second: Any) -> bool:
    """Whether two containers hold the same objects."""
    if len(first) != len(second):
        return False
    if isinstance(first, dict):
        return all(k in second and v is second[k] for k, v in first.items())
    if isinstance(first, set):
        return first == second
    return all(a is b for a, b in zip(first, second, strict=True))


def is_library(value: Any) -> bool:
    """Code that is not the user's: Python's, torch's, psac's, of installed packages."""
    if type(value).__name__ in ("builtin_function_or_method", "method_descriptor"):
        return True
    if isinstance(value, OPEN):
        return False
    if isinstance(value, ModuleType):
        home = value.__name__
    else:
        owner = value if isinstance(value, (type, FunctionType)) else type(value)
        home = getattr(owner, "__module__", None) or ""
    root = home.split(".")[0]
    if root in ("torch", "psac", "numpy", "builtins") or root in sys.stdlib_module_names:
        return root != "__main__"
    file = getattr(sys.modules.get(home), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file
