"""Everything that a function can change: the model, and what the function itself reaches.

Records that are computed one at a time run plain Python, which may remember one record and show it
to the next: a number in an attribute, an entry of a list, a buffer.  So each record starts from the
same `State`, and all must leave the same one: a counter does, a running mean of inputs does not.

`fingerprint` is the cheap form for tensors: has anybody written to them since the last step?
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .loops import loops
from .watch import parts_of, storage_of

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
# Others may do anything when they are read or copied: their content is compared, not restored.
PLAIN_CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
DEEPEST = 20
SMALL = 2**20  # bytes: larger tensors are summed by torch, on all threads


class State:
    """What is reachable from some roots, as it is now; `restore` brings it back."""

    def __init__(self, roots: dict[str, Any], private: Container[int] = ()) -> None:
        """Memory of `private` records is passed over: nobody may read or write it anyway."""
        self._private = private
        self._contents: list[tuple[Any, Any]] = []  # containers, and a shallow copy of each
        self._values: list[tuple[Any, Any]] = []  # tensors and arrays, and a copy of each
        self.leaves: dict[str, Any] = {}  # by path: a value that can be compared
        self._seen: dict[int, str] = {}
        self._alive: list[Any] = []  # so that no id is used twice
        for name, root in roots.items():
            self._visit(name, root, 0)

    def _visit(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, PLAIN):
            self.leaves[path] = repr(value)
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
        elif not isinstance(value, type) and not is_library(value):
            self._visit_container(path, value, depth)

    def _visit_tensor(self, path: str, value: Tensor) -> None:
        if storage_of(value) in self._private:
            return
        self.leaves[path] = (tuple(value.shape), value.dtype, sum_of_words(value))
        if not isinstance(value, nn.Parameter):
            self._values.append((value, value.detach().clone()))

    def _visit_container(self, path: str, value: Any, depth: int) -> None:
        if type(value) in PLAIN_CONTAINERS:
            self._contents.append((value, copy.copy(value)))
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._contents.append((value.__dict__, dict(value.__dict__)))
        if isinstance(value, nn.Module):
            for store in (value._buffers, value._parameters, value._modules):
                self._contents.append((store, dict(store)))
        parts = parts_of(value)
        if isinstance(value, nn.Module) and not is_library(type(value).forward):
            own = {k: v for k, v in vars(type(value)).items() if not k.startswith("__")}
            parts += [(f".{name} (class)", part) for name, part in own.items()]
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
        with torch.no_grad():
            for value, content in self._values:
                if isinstance(value, Tensor):
                    value.data.copy_(content)
                else:
                    value[...] = content

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
    """Python modules, and functions and objects of torch and psac: they keep no record."""
    if type(value).__name__ in ("module", "builtin_function_or_method", "method_descriptor"):
        return True
    code = getattr(value, "__code__", None)
    if code is not None and "site-packages" in code.co_filename:
        return True
    home = getattr(value, "__module__", None) or ""
    is_theirs = home.split(".")[0] in ("torch", "psac", "numpy", "builtins")
    return is_theirs and not isinstance(value, (nn.Module, dict, list, set, tuple, deque))


def fingerprint(tensors: Iterable[Tensor]) -> list[int]:
    """The sum of the bits of each tensor, read as integers: fast, and any one change shows."""
    tensors = [tensor.detach() for tensor in tensors]
    compiled = loops()
    small = [t for t in tensors if compiled and t.nbytes < SMALL and t.is_cpu and is_plain(t)]
    sums = dict(zip(map(id, small), compiled.word_sums(small) if compiled else (), strict=True))
    return [sums[id(t)] if id(t) in sums else sum_of_words(t) for t in tensors]


def is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_contiguous() and not tensor.is_quantized


def sum_of_words(tensor: Tensor) -> int:
    """The same in torch operations."""
    try:
        flat = tensor.detach().contiguous().reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        data = flat.view(torch.uint8)
        whole = len(data) // 8 * 8
        total = int(data[:whole].view(torch.int64).sum()) if whole else 0
        return total + int(data[whole:].sum())
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantised, meta
        return tensor._version
