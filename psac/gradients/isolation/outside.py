"""What a loss function reads that is neither its record nor a parameter: does it change?

Numbers, tensors, arrays, containers, hooks and functions that the model and the function reach
(reach.py) are compared between steps.  Annealed weights and teachers that follow the model change
like a mean of the batch does, so `changed` names what has changed, and its caller warns.

Most steps find everything in its place: objects are compared by identity, and tensors by checksum,
in some microseconds.  Only where that fails are contents compared.

Left to others: what no walk over objects reaches (files, other threads, libraries).
"""

from __future__ import annotations

import array
import itertools
import operator
import secrets
import weakref
from collections import deque
from collections.abc import Container, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psac.gradients import trees
from psac.gradients.errors import PrivacyError
from psac.gradients.isolation.checksums import checksums, window
from psac.gradients.isolation.memory import Memory, refuse_private
from psac.gradients.isolation.reach import (
    BUFFERS,
    HOOKS_ON_ALL,
    STORES,
    Reach,
    globals_in,
    grad_of,
    has_attributes_alone,
    homes,
    inside,
    is_iterator,
    is_library,
    is_plain,
    is_standard,
    unwrapped,
)
from psac.gradients.isolation.settings import changed_settings, settings
from psac.gradients.isolation.state import GENERATORS, MISSING, content_of_cell, leaf_of
from psac.gradients.isolation.watch import storage_of

CHANGING = (*(np.ndarray, bytearray, array.array, GeneratorType, *BUFFERS, *GENERATORS),)
# Ways to the frames of psac, to all objects, to what is under vmap, and to torch's own generator.
INSIGHTS = {
    *("DisableTorchFunction", "default_generator", "default_generators"),
    *("_getframe", "currentframe", "f_back", "f_locals", "tb_frame", "get_objects"),
    *("get_referrers", "get_referents", "_functorch", "get_unwrapped", "_unwrap_batched"),
    *("_remove_batch_dim", "_get_current_function_mode_stack", "_get_current_function_mode"),
    *("_get_function_stack_at", "_pop_mode", "_pop_mode_temporarily"),
    *("_pop_torch_function_stack",),
    *("_len_torch_function_stack", "retrieve_current_functorch_interpreter"),
    *("debug_unwrap", "walk_stack", "walk_tb", "capture_locals", "settrace", "setprofile"),
    *("retrieve_all_functorch_interpreters", "peek_interpreter_stack", "pyfunctorch"),
}
IMMUTABLE = (type(None), bool, int, float, str)
SAMPLED = 2**16  # bytes
LARGE = 2**20  # bytes


class Outside:
    """What exists before the function is called: of the model, private, or anything."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        tensors = [*model.parameters(), *model.buffers()]
        self.known = {id(tensor) for tensor in tensors}  # what belongs to the model
        self.beside: dict[str, Any] = {}  # what is reached with the function: classes of batches
        self.storages = Memory()  # of private records
        self._read: dict[int, tuple[weakref.ref[Tensor], Any]] = {}  # by id: its content
        self._is_first = True
        self._place = secrets.randbits(30)
        self._code: Any = None  # of the last step's function
        self._snapshots: dict[Any, Snapshot] = {}  # by code, and of the model
        self._named: set[str] = set()  # attributes that code names which was reached
        self._settings: tuple[Any, ...] | None = None  # around the last step

    def protect(self, values: Iterable[Any], datasets: Iterable[Any] = ()) -> None:
        """These hold private records: no function may reach them but as its arguments."""
        self.storages = Memory(values, datasets)

    def private(self, batch: Any) -> Memory:
        """That of the data set, and that of the batch."""
        return self.storages | set(map(storage_of, trees.leaves(batch)))

    def changed(self, function: Any) -> list[str]:
        """What the function reaches that is not as it was after the last step."""
        code, found = code_of(function), []
        for key, name, root in self._roots(function):
            before = self._snapshots.get(key)
            if before is None or before.is_same(root):
                continue
            found += before.take_plain()
            if not before.is_same(root):
                now = self._snapshots[key] = self._taken(name, root, before.names)
                found += before.difference(now)
        self._take_what_is_new(function)
        if self._code is not None and code != self._code:
            found.append("another loss function")
        before, self._settings = self._settings, settings()
        return found if before is None else found + changed_settings(before, self._settings)

    def remember(self, function: Any) -> None:
        """As it is after a call: the function itself may count."""
        self._code = code_of(function)
        for key, name, root in self._roots(function):
            before = self._snapshots.get(key)
            if before is not None and not before.is_same(root):
                before.take_plain()
                if not before.is_same(root):
                    self._snapshots[key] = self._taken(name, root, before.names)
        self._take_what_is_new(function)

    def _roots(self, function: Any) -> tuple[tuple[Any, str, Any], ...]:
        return (None, "model", self.model), (code_of(function), "loss", function)

    def _take_what_is_new(self, function: Any) -> None:
        """A new function, or attributes that code names which was not reached before.

        The model holds objects whose attributes the function names, and the other way round.
        """
        roots = self._roots(function)
        while stale := [root for root in roots if self._is_stale(root[0])]:
            for key, name, root in stale:
                self._snapshots[key] = self._taken(name, root, self._named)

    def _is_stale(self, key: Any) -> bool:
        known = self._snapshots.get(key)
        return known is None or len(known.names) < len(self._named)

    def _taken(self, name: str, root: Any, names: set[str]) -> Snapshot:
        """`names` are of attributes that other code reaches."""
        if root is self.model:
            reach = Reach({name: root, **HOOKS_ON_ALL}, names=names)
        else:
            home = getattr(function_of(root), "__module__", None) or ""
            homes.update(set() if is_standard(home) else {home})
            reach = Reach({name: root, **self.beside}, {id(self.model)}, names)
        refuse_insights(reach.names | set(names_of_libraries(reach.found)))
        refuse_private(reach, self.storages)
        self._named |= reach.names
        return Snapshot(reach, root, self._place, self.known)

    def changed_reads(self, read: Iterable[weakref.ref[Tensor]]) -> list[Tensor]:
        """Of what the function read: tensors that are new, or were written, since the last step."""
        found = []
        for reference in read:
            tensor = reference()
            if tensor is None:
                continue
            before = self._read.get(id(tensor))
            content = content_of(tensor)
            if before is None or before[0]() is not tensor or before[1] != content:
                found.append(tensor)
            self._read[id(tensor)] = reference, content
        is_first, self._is_first = self._is_first, False
        return [] if is_first else found

    def accept(self) -> None:
        """What has changed until now is public."""
        self._snapshots, self._code, self._is_first, self._settings = {}, None, True, None
        for key, (reference, _) in list(self._read.items()):
            tensor = reference()
            if tensor is None:
                del self._read[key]
            else:
                self._read[key] = reference, content_of(tensor)


def refuse_insights(names: set[str]) -> None:
    """Raises for names by which a function reaches psac's own frames, or under vmap."""
    used = names & INSIGHTS
    if used:
        raise PrivacyError(
            f"the loss function, or code that it reaches, uses {', '.join(sorted(used))}: with "
            "that it could see all records of the batch or their number, or choose the random "
            "numbers that they get. Leave it out."
        )


def names_of_libraries(found: Iterable[tuple[str, Any]]) -> Iterable[str]:
    """By which libraries know what is reached, whatever name it was imported under."""
    for _, value in found:
        if value is torch.default_generator:
            yield "default_generator"
        elif isinstance(value, (type, ModuleType, FunctionType, BuiltinFunctionType)):
            yield value.__name__.rsplit(".", 1)[-1]


def content_of(tensor: Tensor) -> Any:
    """What changes if the tensor is written to; of large ones, only if torch knows of it."""
    if tensor.nbytes > LARGE or not tensor.is_cpu:
        return tensor._version
    return checksums([tensor])[0]


def code_of(function: Any) -> Any:
    """Functions that a loop makes anew in each step have one code."""
    function = function_of(function)
    return getattr(function, "__code__", None) or type(function)


def function_of(function: Any) -> Any:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return unwrapped(getattr(function, "__func__", function))


class Snapshot:
    """Everything that can be reached, at one time."""

    def __init__(
        self,
        reach: Reach,
        root: Any = None,
        place: int | None = None,
        known: Container[int] = frozenset(),
    ) -> None:
        """Tensors that are `known` are compared elsewhere; their attributes are compared here."""
        self._root, self._place = root, secrets.randbits(30) if place is None else place
        place, self.names = self._place, set(reach.names)
        found = [(path, value) for path, value in reach.found if id(value) not in known]
        self.leaves = {path: content_at(value, place) for path, value in found}
        self._tensors = [value for _, value in found if isinstance(value, Tensor)]
        self._prints = prints(self._tensors, place)
        self._grads = [(t, t.requires_grad, grad_of(t)) for t in self._tensors]
        self._owners: list[Any] = []  # of attributes
        self._attributes: list[dict] = []
        self._empty: list[Any] = []
        self._stores: list[tuple[dict, list[Any], list[Any], str]] = []  # keys, values, path
        self._names: list[tuple[Mapping[str, Any], str, Any]] = list(reach.of_libraries)
        self._cells: list[tuple[Any, Any]] = []
        self._parts: list[tuple[Any, list[Any]]] = []  # objects, and what is inside
        self._contents: list[tuple[Any, Any]] = []
        for path, value in reach.found:
            self._watch(path, value, self.leaves.get(path))
        self._classes = list(map(type, self._owners))
        self._flatten()

    def _flatten(self) -> None:
        """All stores end to end, so that they are compared in one go."""
        self._all_stores = [store for store, *_ in self._stores]
        self._sizes = list(map(len, self._all_stores))
        self._all_keys = [key for _, keys, _, _ in self._stores for key in keys]
        self._all_values = [value for _, _, values, _ in self._stores for value in values]

    def _watch(self, path: str, value: Any, content: Any) -> None:
        """Where it shows at a glance that `value` is not what it was."""
        if isinstance(value, CHANGING) or is_iterator(type(value)):
            self._contents.append((value, content))
        elif isinstance(value, Tensor):
            self._watch_attributes(value, path)
        elif is_plain(value) or isinstance(value, (tuple, frozenset)) or is_library(value):
            return
        elif isinstance(value, nn.Module):
            self._watch_attributes(value, path)
            for store in (getattr(value, name) for name in STORES):
                self._watch_store(store, path + ".{}")
        elif isinstance(value, dict):
            self._watch_store(value, path + "[{!r:.40}]")
        elif isinstance(value, FunctionType):
            self._watch_function(value)
        elif isinstance(value, set) and not value:
            self._empty.append(value)
        elif has_attributes_alone(type(value)):
            self._watch_attributes(value, path)
        else:
            self._parts.append((value, parts_in(value)))

    def _watch_attributes(self, value: Any, path: str) -> None:
        self._owners.append(value)
        self._attributes.append(vars(value))
        self._watch_store(vars(value), path + ".{}")

    def _watch_store(self, store: Any, path: str) -> None:
        if not isinstance(store, dict):  # of torch.jit
            return
        if store:
            self._stores.append((store, list(store), list(store.values()), path))
        else:
            self._empty.append(store)

    def _watch_function(self, function: Any) -> None:
        self._parts.append((function, parts_in(function)))
        for cell in function.__closure__ or ():
            self._cells.append((cell, content_of_cell(cell)))
        store = function.__globals__
        self._names += [(store, n, store[n]) for n in globals_in(function.__code__) if n in store]

    def is_same(self, root: Any = None) -> bool:
        """Whether all is in its place: quick, and sometimes False though nothing has changed."""
        return self.is_same_but_tensors(root) and (
            not self._tensors or prints(self._tensors, self._place) == self._prints
        )

    def retake(self) -> None:
        """Of tensors, their content now."""
        self._prints = prints(self._tensors, self._place)

    def is_same_but_tensors(self, root: Any = None) -> bool:
        """Whether all is in its place, whatever is in tensors."""
        return (
            (root is self._root or (isinstance(root, MethodType) and root == self._root))
            and not any(map(len, self._empty))
            and all(map(operator.is_, map(type, self._owners), self._classes))
            and all(map(operator.is_, map(vars, self._owners), self._attributes))
            and all(t.requires_grad is r and grad_of(t) is g for t, r, g in self._grads)
            and list(map(len, self._all_stores)) == self._sizes
            and all(map(operator.is_, in_all(self._all_stores), self._all_values))
            and list(itertools.chain.from_iterable(self._all_stores)) == self._all_keys
            and all(content_of_cell(cell) is value for cell, value in self._cells)
            and all(store.get(name, MISSING) is value for store, name, value in self._names)
            and all(are_same(parts_in(value), before) for value, before in self._parts)
            and all(content_at(v, self._place) == before for v, before in self._contents)
        )

    def take_plain(self) -> list[str]:
        """Takes in numbers and texts that are others now, and names them: no walk is needed."""
        found = []
        for store, keys, values, path in self._stores:
            if is_same_store((store, keys, values, path)) or list(store) != keys:
                continue
            for k, (key, now) in enumerate(store.items()):
                both_plain = isinstance(now, IMMUTABLE) and isinstance(values[k], IMMUTABLE)
                if now is values[k] or not both_plain:
                    continue
                place, before, values[k] = path.format(key), values[k], now
                if place in self.leaves and repr(now) != repr(before):  # else no code names it
                    found.append(place)
                    self.leaves[place] = leaf_of(now)
        self._flatten()
        return found

    def difference(self, later: Snapshot) -> list[str]:
        """Paths at which something is not what it was."""
        return sorted(
            path
            for path in self.leaves.keys() | later.leaves.keys()
            if self.leaves.get(path, MISSING) != later.leaves.get(path, MISSING)
        )


def parts_in(value: Any) -> list[Any]:
    if isinstance(value, FunctionType):
        named = (value.__kwdefaults__ or {}).values()
        return [value.__code__, value.__defaults__, *named, *value.__dict__.values()]
    if isinstance(value, (list, set, deque)):
        return list(value)
    if isinstance(value, type):
        return [*vars(value).values(), value.__bases__]
    return [part for _, part in inside(value)]


def is_same_store(entry: tuple[dict, list[Any], list[Any], str]) -> bool:
    store, keys, values, _ = entry
    return list(store) == keys and all(map(operator.is_, store.values(), values))


def in_all(stores: Iterable[dict]) -> Iterable[Any]:
    return itertools.chain.from_iterable(map(dict.values, stores))


def are_same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, first, second))


def content_at(value: Any, place: int) -> Any:
    """A content to compare; of large arrays and tensors a part."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype, *prints([value], place))
    if isinstance(value, np.ndarray) and value.nbytes > SAMPLED:
        size = SAMPLED // value.itemsize
        first = place % (value.size - size)
        return value.shape, leaf_of(value.flat[first : first + size])
    return leaf_of(value)


def prints(tensors: list[Tensor], place: int) -> list[int]:
    """A number for the content of each tensor; of large ones, of a part and of torch's counter."""
    windows = [window(tensor, place) for tensor in tensors]
    large = [t._version for t, w in zip(tensors, windows, strict=True) if w is not t]
    return [*checksums(windows), *large]
