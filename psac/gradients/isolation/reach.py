"""What a function can reach: the one walk over objects that all checks share.

From a function it goes to closure, defaults, attributes and the globals that its code names; from
an object to its attributes and its class, from a class to its bases; through containers, views,
partials, properties, weak references, exceptions and context variables.  It does not enter
libraries: what Python, torch or an installed package keeps is theirs, except for attributes that
the user's code names.  The module of the loss function is the user's, wherever it is installed.

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
import operator
import queue
import random
import sys
import threading
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, UserString, deque
from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch._library.custom_ops import CustomOpDef
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

from psac.gradients.errors import PrivacyError

PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range),
    *(torch.dtype, torch.device, torch.Size, np.generic, array.array, Number, datetime.date),
)
# Read and written by the methods of these, whatever a class of the user's makes of them.
CONTAINERS = (OrderedDict, dict, list, set, deque)
VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
WRAPPERS = (
    *(UserDict, UserList, UserString, ChainMap, queue.Queue, weakref.WeakSet),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
)
# Of the standard library, and yet with things of the user's inside.
OPEN = (
    *(nn.Module, dict, list, set, tuple, deque, functools.partial, functools.partialmethod),
    *(MethodType, threading.local, CustomOpDef, SimpleNamespace, argparse.Namespace),
    *(*WRAPPERS, *VIEWS, MappingProxyType, BaseException, contextvars.ContextVar),
    *(weakref.ref, property, staticmethod, classmethod, functools.cached_property),
)
# Of torch: what they are made of can be read by them, whatever code names.
OF_RECORDS = (Subset, ConcatDataset, StackDataset, TensorDataset, DataLoader, LoaderIterator)
HOLD_RECORDS = ("dataset", "datasets", "tensors", "_dataset")
GETTERS = (operator.attrgetter, operator.methodcaller)
# psac gives these a stream of its own (generators.py), whoever draws from them.
DRAWN_FROM_BY_ALL: set[int] = {id(np.random.mtrand._rand), id(random._inst)}  # type: ignore[attr-defined]
homes: set[str] = set()  # modules of loss functions
Cached = type(functools.lru_cache(len))
STORES = ("_parameters", "_buffers", "_modules")
BUILDERS = {"__init__", "__new__", "__init_subclass__", "__class_getitem__"}
CALLED_BY_TORCH = {"forward", "backward", "setup_context", "vmap", "jvp"}
OF_PYTHON = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__builtins__", "__name__", "__file__"),
    *("__package__", "__loader__", "__spec__", "__cached__", "__annotations__"),
}
LONG = 256  # entries
WRITTEN_IN_PYTHON = 2**9  # Py_TPFLAGS_HEAPTYPE
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
DEEPEST = 200


def is_plain(value: Any) -> bool:
    return is_plain_type(type(value))


@functools.lru_cache(maxsize=4096)
def is_plain_type(kind: type) -> bool:
    return issubclass(kind, PLAIN)


@functools.lru_cache(maxsize=4096)
def is_iterator(kind: type) -> bool:
    """Of Python's own iterators, whose state can be read."""
    return kind.__module__ in ("builtins", "itertools") and issubclass(kind, Iterator)


@functools.lru_cache(maxsize=4096)
def has_attributes_alone(kind: type) -> bool:
    """Whether `vars` gives all that an object holds: no slots, and nothing built into Python."""
    stores = []
    for base in kind.__mro__[:-1]:
        if not base.__flags__ & WRITTEN_IN_PYTHON or base.__dict__.get("__slots__"):
            return False
        stores += [base.__dict__["__dict__"]] if "__dict__" in base.__dict__ else []
    return bool(stores) and all(isinstance(store, GetSetDescriptorType) for store in stores)


class Reach:
    """`found`: path and value of everything that can be reached, each object once."""

    def __init__(
        self, roots: Mapping[str, Any], skip: Iterable[int] = (), names: Iterable[str] = ()
    ) -> None:
        """`names` are of attributes that other code reaches."""
        self.found: list[tuple[str, Any]] = []  # keeps all alive, so that no id is used twice
        self.names = {*CALLED_BY_TORCH, *names}
        self.of_libraries: list[tuple[Mapping[str, Any], str, Any]] = []  # what code names of them
        self._seen = DRAWN_FROM_BY_ALL.union(skip)
        self._waiting: list[tuple[str, str, Any, int]] = []  # attributes that no code has named
        self._libraries: list[tuple[str, Mapping[str, Any], int, set[str]]] = []
        waiting = deque((name, value, 0) for name, value in roots.items())
        while waiting or (waiting := self._newly_named()):
            path, value, depth = waiting.popleft()  # the nearest first: paths are short
            value = unwrapped(value)
            if not is_plain(value):
                if id(value) in self._seen:
                    continue
                self._seen.add(id(value))
            if depth > DEEPEST:
                refuse_depth(path)
            self.found.append((path, value))
            self.names.update(names_by(value))
            for step, part in self._parts(path, value, depth):
                waiting.append((path + step, part, depth + 1))

    def _parts(self, path: str, value: Any, depth: int) -> list[tuple[str, Any]]:
        parts = inside(value)
        if is_library(value) and hasattr(value, "__dict__") and not isinstance(value, Tensor):
            # the momentum of an optimizer is no news: it follows from released gradients
            taken = {"state"} if isinstance(value, torch.optim.Optimizer) else set()
            self._libraries.append((path, vars(value), depth, taken))
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

    def _newly_named(self) -> deque[tuple[str, Any, int]]:
        everything = not self.names.isdisjoint(DYNAMIC)
        named = [w for w in self._waiting if everything or w[0] in self.names]
        self._waiting = [w for w in self._waiting if not (everything or w[0] in self.names)]
        found = deque((path, part, depth) for _, path, part, depth in named)
        for path, store, depth, taken in self._libraries:
            for name in sorted((self.names & store.keys()) - taken):
                taken.add(name)
                self.of_libraries.append((store, name, store[name]))
                found.append((f"{path}.{name}", store[name], depth + 1))
        return found


def inside(value: Any) -> list[tuple[str, Any]]:
    """What a value holds, with how to reach it; nothing of libraries and plain values."""
    if is_plain(value) or isinstance(value, np.ndarray) or is_long(value):
        return []
    if isinstance(value, Tensor):
        parts = [(f".{name}", part) for name, part in vars(value).items()]
        if grad_of(value) is not None:
            parts.append((" (grad)", value.grad))
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
    if isinstance(value, OF_RECORDS):
        return [(f" ({name})", vars(value)[name]) for name in HOLD_RECORDS if name in vars(value)]
    if is_library(value):
        return []
    if isinstance(value, (ModuleType, type)):
        parts = [(f".{k}", v) for k, v in list(vars(value).items()) if k not in OF_PYTHON]
        return [*parts, *((" (base)", kind) for kind in kinds_of(value))]
    parts = parts_of(value)
    if not isinstance(value, torch.jit.ScriptModule) and not is_library(type(value)):
        parts.append((" (class)", type(value)))
    return parts


def kinds_of(value: Any) -> list[type]:
    """The bases of a class, and its own class."""
    kinds = (*value.__bases__, type(value)) if isinstance(value, type) else ()
    return [kind for kind in kinds if not is_library(kind)]


def grad_of(tensor: Tensor) -> Tensor | None:
    return tensor.grad if tensor.is_leaf else None


def unwrapped(value: Any) -> Any:
    """What torch.compile was given, in the place of what it has made."""
    while isinstance(value, FunctionType) and "_torchdynamo_orig_callable" in vars(value):
        value = vars(value)["_torchdynamo_orig_callable"]
    return value


def refuse_depth(path: str) -> NoReturn:
    raise PrivacyError(
        f"the loss function reaches an object that is nested more than {DEEPEST} deep "
        f"({path:.80}...), too deep for psac to see whether it changes. Leave it out, or keep its "
        "parts in a list."
    )


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
        items = list(dict.items(value))
        own += [(f" (key {key!r:.40})", key) for key, _ in items if not is_plain(key)]
        return [(f"[{key!r:.40}]", part) for key, part in items] + own
    if isinstance(value, MappingProxyType):
        return [(f"[{key!r:.40}]", part) for key, part in value.items()]
    if isinstance(value, VIEWS):
        return [("", value.mapping)]  # type: ignore[attr-defined]
    if isinstance(value, WRAPPERS):
        return [(f" ({name})", part) for name, part in vars(value).items()]
    if isinstance(value, BaseException):
        return [(" (args)", value.args), (" (attributes)", vars(value))]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
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
    inner = {name: getattr(value, name) for name in slots_of(value) if hasattr(value, name)}
    inner |= getattr(value, "__dict__", {})
    return [(f".{name}", part) for name, part in inner.items()]


def slots_of(value: Any) -> list[str]:
    slots = [kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__]
    return [n for names in slots for n in ([names] if isinstance(names, str) else names)]


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


def names_by(value: Any) -> Iterable[str]:
    """The attributes that a value makes code reach, by its own code or as an attrgetter does."""
    if isinstance(value, FunctionType):
        return () if is_library(value) else names_in(value.__code__)
    if isinstance(value, GETTERS):
        return {part for text in value.__reduce__()[1] for part in str(text).split(".")}
    return vars(value).get("__match_args__", ()) if isinstance(value, type) else ()


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """What a code names: globals, attributes, and constants that could be; inner functions too."""
    constants = [c for c in code.co_consts if isinstance(c, str)]
    constants += [t for c in code.co_consts if isinstance(c, tuple) for t in c if type(t) is str]
    texts = {text for text in constants if text.isidentifier()}
    imported = {part for name in code.co_names for part in name.split(".")}
    inner = [names_in(c) for c in code.co_consts if isinstance(c, CodeType)]
    return frozenset(set(code.co_names) | texts | imported).union(*inner)


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
        home = getattr(value, "__module__", None)
        home = home if isinstance(home, str) else ""
        return home not in homes and is_installed(home)
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
