"""What a function can reach: the one walk over objects that all checks share.

From a function it goes to closure, defaults, attributes and the globals that its code names; from
an object to its attributes and its class; through containers, partials, properties, weak references
and context variables.  It does not enter libraries: what Python, torch or an installed package
keeps is theirs, except for attributes of its objects that the user's code names.

Of a module of Python, a class or an object it takes the attributes whose names occur in code that
was reached: a method of a trainer reaches `self.alpha`, which it reads, and not `self.history`.  Of
an nn.Module it takes all, and of everything else, too, if some code names no names (`getattr`).
"""

from __future__ import annotations

import argparse
import array
import contextvars
import ctypes
import datetime
import dis
import functools
import mmap
import queue
import sys
import threading
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, UserString, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._library.custom_ops import CustomOpDef

PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range),
    *(torch.dtype, torch.device, torch.Size, np.generic, array.array, Number, datetime.date),
)
# Others may do anything when they are read or copied: their content is compared, not restored.
PLAIN_CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
# Of the standard library, and yet with things of the user's inside.
OPEN = (
    *(nn.Module, dict, list, set, tuple, deque, functools.partial, functools.partialmethod),
    *(MethodType, threading.local, CustomOpDef, SimpleNamespace, argparse.Namespace),
    *(UserDict, UserList, UserString, ChainMap, queue.Queue, contextvars.ContextVar),
    *(weakref.ref, property, staticmethod, classmethod, functools.cached_property),
)
Cached = type(functools.lru_cache(len))
STORES = ("_parameters", "_buffers", "_modules")
BUILDERS = {"__init__", "__new__", "__init_subclass__", "__class_getitem__"}
CALLED_BY_TORCH = {"forward", "backward", "setup_context", "vmap", "jvp"}
OF_PYTHON = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__builtins__", "__name__", "__file__"),
    *("__package__", "__loader__", "__spec__", "__cached__", "__annotations__"),
}
LONG = 256  # entries
BUFFERS = (memoryview, mmap.mmap, ctypes.Array, ctypes.Structure, ctypes._SimpleCData)
OF_ALL_MODULES: Any = torch.nn.modules.module
HOOKS_ON_ALL = {
    "hooks after all forwards": OF_ALL_MODULES._global_forward_hooks,
    "hooks before all forwards": OF_ALL_MODULES._global_forward_pre_hooks,
}
# With one of these a code can reach attributes that it does not name.
DYNAMIC = {
    *("getattr", "setattr", "vars", "__dict__", "__getattribute__", "__setattr__", "attrgetter"),
    *("eval", "exec", "globals", "locals", "inspect", "gc", "_getframe", "__import__"),
}
BY_TEXT = {"globals", "eval", "exec"}  # with one of these it may name globals in a string
OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
DEEPEST = 20


def is_plain(value: Any) -> bool:
    return is_plain_type(type(value))


@functools.lru_cache(maxsize=4096)
def is_plain_type(kind: type) -> bool:
    return issubclass(kind, PLAIN)


@functools.lru_cache(maxsize=4096)
def is_iterator(kind: type) -> bool:
    """Of Python's own iterators, whose state can be read."""
    return kind.__module__ in ("builtins", "itertools") and issubclass(kind, Iterator)


class Reach:
    """`found`: path and value of everything that can be reached, each object once."""

    def __init__(self, roots: Mapping[str, Any], skip: Iterable[int] = ()) -> None:
        self.found: list[tuple[str, Any]] = []  # keeps all alive, so that no id is used twice
        self.names = set(CALLED_BY_TORCH)
        self.of_libraries: list[tuple[dict[str, Any], str, Any]] = []  # what code names of them
        self._seen = set(skip)
        self._waiting: list[tuple[str, str, Any, int]] = []  # attributes that no code has named
        self._libraries: list[tuple[str, dict[str, Any], int]] = []
        stack = [(name, value, 0) for name, value in reversed(list(roots.items()))]
        while stack or (stack := self._newly_named()):
            path, value, depth = stack.pop()
            if not is_plain(value):
                if id(value) in self._seen or depth > DEEPEST:
                    continue
                self._seen.add(id(value))
            self.found.append((path, value))
            if isinstance(value, FunctionType) and not is_library(value):
                self.names |= names_in(value.__code__)
            for step, part in reversed(self._parts(path, value, depth)):
                stack.append((path + step, part, depth + 1))

    def _parts(self, path: str, value: Any, depth: int) -> list[tuple[str, Any]]:
        parts = inside(value)
        if isinstance(value, ModuleType) and is_library(value):
            self._libraries.append((path, vars(value), depth))
        if isinstance(value, (nn.Module, FunctionType, dict)):
            return parts
        now = []
        for step, part in parts:
            name = step[1:]
            if name in BUILDERS:
                continue
            if step.startswith(".") and name.isidentifier() and not name.startswith("__"):
                self._waiting.append((name, path + step, part, depth + 1))
            else:
                now.append((step, part))
        return now

    def _newly_named(self) -> list[tuple[str, Any, int]]:
        everything = not self.names.isdisjoint(DYNAMIC)
        named = [w for w in self._waiting if everything or w[0] in self.names]
        self._waiting = [w for w in self._waiting if not (everything or w[0] in self.names)]
        found = [(path, part, depth) for _, path, part, depth in reversed(named)]
        for path, store, depth in self._libraries:
            for name in self.names & store.keys():
                if id(store[name]) not in self._seen and not is_plain(store[name]):
                    self.of_libraries.append((store, name, store[name]))
                    found.append((f"{path}.{name}", store[name], depth + 1))
        return found


def inside(value: Any) -> list[tuple[str, Any]]:
    """What a value holds, with how to reach it; nothing of libraries and plain values."""
    if is_plain(value) or isinstance(value, np.ndarray) or is_long(value):
        return []
    if isinstance(value, Tensor):
        parts = [(f".{name}", part) for name, part in vars(value).items()]
        return parts if is_library(value) else [*parts, (" (class)", type(value))]
    if isinstance(value, Cached):
        return [(".__wrapped__", value.__wrapped__)]
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return [(" (locals)", dict(frame.f_locals) if frame else {}), ("", value.gi_code)]
    if isinstance(value, BuiltinMethodType):  # of an object, such as the `get` of a dict
        owner = value.__self__
        return [] if owner is None or isinstance(owner, (ModuleType, type)) else [("", owner)]
    if is_iterator(type(value)):
        return [(" (state)", value.__reduce__()[1:])]
    if is_library(value):
        return []
    if isinstance(value, (ModuleType, type)):
        return [(f".{k}", v) for k, v in list(vars(value).items()) if k not in OF_PYTHON]
    parts = parts_of(value)
    if not isinstance(value, torch.jit.ScriptModule) and not is_library(type(value)):
        parts.append((" (class)", type(value)))
    return parts


def is_long(value: Any) -> bool:
    """A long container of plain values alone: one value, for all that matters here."""
    if type(value) not in (list, tuple, set, frozenset, deque, dict) or len(value) < LONG:
        return False
    kinds = set(map(type, value.values() if isinstance(value, dict) else value))
    return all(map(is_plain_type, kinds))


def parts_of(value: Any) -> list[tuple[str, Any]]:
    """What a value holds, with how to reach it, whoever wrote its class."""
    if isinstance(value, torch.jit.ScriptModule):
        return of_scripted(value)
    if isinstance(value, nn.Module):
        inner = {k: v for k, v in vars(value).items() if k not in STORES}
        for store in STORES:
            inner |= dict(getattr(value, store).items())
        parts = [(f".{name}", part) for name, part in inner.items()]
        return [*parts, (" (class).forward", type(value).forward)]
    if isinstance(value, dict):
        own = [(f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()]
        return [(f"[{key!r:.40}]", part) for key, part in list(dict.items(value))] + own
    if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        return [(f"[{k}]", part) for k, part in enumerate(list(value))]
    if isinstance(value, ModuleType):
        return []
    if isinstance(value, MethodType):
        return [(".__self__", value.__self__), ("", value.__func__)]
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return [("", value.func), (" (bound)", value.args), (" (bound)", value.keywords)]
    if isinstance(value, property):
        return [("", value.fget), ("", value.fset)]
    if isinstance(value, (staticmethod, classmethod)):
        return [("", value.__func__)]
    if isinstance(value, functools.cached_property):
        return [("", value.func)]
    if isinstance(value, weakref.ref):
        return [("()", value())]
    if isinstance(value, contextvars.ContextVar):
        return [(".get()", value.get(None))]
    if isinstance(value, FunctionType):
        return of_function(value)
    if isinstance(value, CustomOpDef):
        return [("", value._init_fn)]
    slots = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
    inner = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    inner |= getattr(value, "__dict__", {})
    return [(f".{name}", part) for name, part in inner.items()]


def of_scripted(module: Any) -> list[tuple[str, Any]]:
    """Attributes of a module that torch.jit has compiled, which are not Python's."""
    parts = [(f".{name}", part) for name, part in module.named_parameters(recurse=False)]
    parts += [(f".{name}", part) for name, part in module.named_buffers(recurse=False)]
    parts += [(f".{name}", part) for name, part in module.named_children()]
    kind = getattr(module, "_concrete_type", None)
    if kind is None:  # loaded from a file
        return [*parts, (" (attributes)", module._c.dump_to_str(False, True, False))]
    return parts + [(f".{name}", module._c.getattr(name)) for name in kind.get_attributes()]


def of_function(function: Any) -> list[tuple[str, Any]]:
    """Closure, defaults, attributes, and the globals that its code names."""
    parts = []
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            parts.append((f" (closure) {name}", cell.cell_contents))
        except ValueError:
            continue  # an empty cell
    parts += [(f" (default {k})", v) for k, v in enumerate(function.__defaults__ or ())]
    parts += [(f" (default {k})", v) for k, v in (function.__kwdefaults__ or {}).items()]
    parts += [(f".{name}", v) for name, v in vars(function).items()]
    for name in sorted(globals_in(function.__code__)):
        if name in function.__globals__:
            parts.append((f" (global) {name}", function.__globals__[name]))
    return parts


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """What a code names: globals, attributes, and constants that could be; inner functions too."""
    texts = {c for c in code.co_consts if isinstance(c, str) and c.isidentifier()}
    inner = [names_in(c) for c in code.co_consts if isinstance(c, CodeType)]
    return frozenset(set(code.co_names) | texts).union(*inner)


@functools.lru_cache(maxsize=4096)
def globals_in(code: CodeType) -> frozenset[str]:
    """The globals that a code reads or writes, inner functions too; `model.x` is not a global x."""
    if names_in(code) & BY_TEXT:
        return names_in(code)
    own = {i.argval for i in dis.get_instructions(code) if i.opname in OF_GLOBALS}
    inner = [globals_in(c) for c in code.co_consts if isinstance(c, CodeType)]
    return frozenset(own).union(*inner)


def is_library(value: Any) -> bool:
    """Code that is not the user's: Python's, torch's, psac's, of installed packages."""
    if type(value).__name__ in ("builtin_function_or_method", "method_descriptor"):
        return True
    if isinstance(value, OPEN):
        return False
    if isinstance(value, ModuleType):
        return is_installed(value.__name__)
    if isinstance(value, (type, FunctionType)):
        return is_installed(getattr(value, "__module__", None) or "")
    return is_standard(getattr(type(value), "__module__", None) or "")


@functools.lru_cache(maxsize=4096)
def is_standard(home: str) -> bool:
    """A module, by its name, of Python, torch, numpy or psac: even its objects are not entered."""
    root = home.split(".")[0]
    if root == "__main__":
        return False
    return root in ("torch", "psac", "numpy", "builtins") or root in sys.stdlib_module_names


@functools.lru_cache(maxsize=4096)
def is_installed(home: str) -> bool:
    """A module, by its name, that is not the user's."""
    if is_standard(home):
        return True
    file = getattr(sys.modules.get(home), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file
