"""The places in which a forward could keep something, and models that stand in another state.

Parameters, buffers and plain attributes of all modules. Of torch's own modules only tensors count,
since the rest are settings that their forwards never write. `standing` puts a model into a copy of
a state for a while; whatever is written there is gone afterwards.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Address = tuple[int, str]

CONTAINERS = (list, tuple, dict, set, deque)
_NUMBERS = (bool, int, float, complex, str, type(None))
_VERSION = attrgetter("_version")
_OWN = frozenset(vars(nn.Module()))  # what every module has


class Place(NamedTuple):
    store: Any  # a mapping: of attributes, buffers or parameters
    key: str
    name: str
    kind: str  # "parameter", "buffer" or "attribute"

    @property
    def address(self) -> Address:
        return id(self.store), self.key


def places_of(model: nn.Module) -> list[Place]:
    found: list[Place] = []
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for kind, store in (("buffer", module._buffers), ("parameter", module._parameters)):
            found += [Place(store, key, prefix + key, kind) for key in list(store.keys())]
        if isinstance(module, torch.jit.ScriptModule):
            continue
        found += [
            Place(vars(module), key, prefix + key, "attribute")
            for key, value in vars(module).items()
            if key not in _OWN and (not is_of_torch(module) or isinstance(value, Tensor))
        ]
    return found


def stores_of(model: nn.Module) -> list[Any]:
    """The mappings that grow when a forward makes itself a new place."""
    return [
        store
        for module in model.modules()
        for store in (
            (vars(module),)
            if is_of_torch(module)
            else (vars(module), module._buffers, module._modules)
        )
    ]


def is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


@contextlib.contextmanager
def standing(model: nn.Module, state: Mapping[Address, Any]) -> Iterator[None]:
    """The model in a copy of `state`; what it held is put back at the end."""
    actual = [(place, place.store[place.key]) for place in places_of(model)]
    memo: dict[int, Any] = {}
    try:
        for place, _ in actual:
            if place.address in state:
                place.store[place.key] = copied(state[place.address], memo)
            else:
                del place.store[place.key]  # it came later
        yield
    finally:
        put_back(model, actual)


@contextlib.contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """What is written to attributes in here is gone afterwards.

    Tensors that want a gradient stay the same objects, so that the graph knows them.
    """
    actual = [(place, place.store[place.key]) for place in places_of(model)]
    memo: dict[int, Any] = {}
    try:
        for place, value in actual:
            if place.kind == "attribute":
                place.store[place.key] = copied(value, memo, keep_graph=True)
        yield
    finally:
        put_back(model, actual)


def put_back(model: nn.Module, actual: list[tuple[Place, Any]]) -> None:
    known = {place.address for place, _ in actual}
    for place in places_of(model):
        if place.address not in known:
            del place.store[place.key]
    for place, value in actual:
        if place.key not in place.store or place.store[place.key] is not value:
            place.store[place.key] = value


def copied(value: Any, memo: dict[int, Any], keep_graph: bool = False) -> Any:
    """A copy of tensors and of containers of them; the rest is shared."""
    if id(value) in memo:
        return memo[id(value)]
    result = value
    if isinstance(value, Tensor):
        if not (keep_graph and value.requires_grad):
            result = value.detach().clone()
            if isinstance(value, nn.Parameter):
                result = nn.Parameter(result, requires_grad=value.requires_grad)
    elif type(value) in CONTAINERS:
        result = copy.copy(value)
        if isinstance(value, dict):
            for key, part in value.items():
                result[key] = copied(part, memo, keep_graph)
        elif isinstance(value, (list, deque)):
            for k, part in enumerate(value):
                result[k] = copied(part, memo, keep_graph)
        elif isinstance(value, tuple):
            result = tuple(copied(part, memo, keep_graph) for part in value)
    memo[id(value)] = result
    return result


def elements(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def flat(value: Any) -> Iterator[Any]:
    """Tensors and numbers in a value; other objects are not looked into."""
    if isinstance(value, (Tensor, *_NUMBERS)):
        yield value
    elif isinstance(value, CONTAINERS):
        yield len(value)
        for part in elements(value):
            yield from flat(part)
    elif hasattr(value, "__dataclass_fields__"):
        yield from flat(vars(value))


def same(first: Any, second: Any) -> bool:
    """Equal in all tensors and numbers; what is not a number equals itself."""
    ones, others = list(flat(first)), list(flat(second))
    return len(ones) == len(others) and all(map(_equal, ones, others))


def _equal(first: Any, second: Any) -> bool:
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        if isinstance(first, Tensor) or isinstance(second, Tensor):
            return False
        return bool(first == second or (first != first and second != second))
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    if first.layout is not torch.strided or second.layout is not torch.strided:
        first, second = first.to_dense(), second.to_dense()
    first, second = first.detach(), second.detach()
    if torch.equal(first, second):
        return True
    return bool(((first == second) | ((first != first) & (second != second))).all())


def version(value: Any) -> int:
    """How often a tensor was written."""
    try:
        return value._version
    except (RuntimeError, AttributeError):  # made in inference mode, which counts nothing
        return -1


def versions(tensors: Iterable[Tensor]) -> list[int]:
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:
        return list(map(version, tensors))
