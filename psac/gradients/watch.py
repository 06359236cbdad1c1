"""What a loss function reads, and what it leaves behind.

`torch.vmap` keeps records apart while the function runs.  Two doors are left, and closed here:

- **In.** A function may read a tensor from outside: a closure, a global, a default.  One that lies
  in the memory of the private batch or data set holds other records, and is refused.  One that
  changes from step to step cannot be judged: `changes` names it.
- **Out.** A tensor that was computed from a record and outlives the call (an attribute, a list, a
  global) would meet another record in the next step.  `remains` names it, wherever it is kept.

Both hold for every operation that passes a torch function mode, which is where `Watch` is told.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterable
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch._C import _functorch  # type: ignore[attr-defined]
from torch._library.custom_ops import CustomOpDef

from .checksums import checksums
from .errors import PrivacyError
from .training import modules_of

LARGE = 2**20  # bytes
is_wrapped = _functorch.is_functorch_wrapped_tensor


class Outside:
    """Tensors that exist before the function is called: of the model, private, or anything."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        tensors = [*model.parameters(), *model.buffers()]
        self.known = {id(tensor) for tensor in tensors}  # what belongs to the model
        self.storages: set[int] = set()  # memory of private records
        self._read: dict[int, tuple[weakref.ref[Tensor], Any]] = {}  # by id: its content
        self._is_first = True
        self._numbers: dict[str, Any] = {}  # that the function names: closure, defaults, globals

    def changed_numbers(self, function: Any) -> list[str]:
        """Numbers that the function reads from outside, and that are not those of the last step."""
        numbers = self._numbers_of(function)
        return [n for n, v in numbers.items() if n in self._numbers and self._numbers[n] != v]

    def _numbers_of(self, function: Any) -> dict[str, Any]:
        parts = parts_of(function)
        if isinstance(function, (MethodType, functools.partial)):
            parts = [part for _, inner in parts for part in parts_of(inner)]
        for module in modules_of(self.model):
            parts += [(f"model.{type(module).__name__}.{k}", v) for k, v in vars(module).items()]
        return {name.strip(): value for name, value in parts if type(value) in (int, float)}

    def remember_numbers(self, function: Any) -> None:
        """As they are after a call: the function itself may count."""
        self._numbers = self._numbers_of(function)

    def protect(self, tensors: Iterable[Tensor]) -> None:
        """These hold private records: no function may reach them but as its arguments."""
        self.storages |= {storage_of(tensor) for tensor in tensors} - {0}

    def changed(self, read: Iterable[weakref.ref[Tensor]]) -> list[Tensor]:
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
        self._numbers, self._is_first = {}, True
        for key, (reference, _) in list(self._read.items()):
            tensor = reference()
            if tensor is None:
                del self._read[key]
            else:
                self._read[key] = reference, content_of(tensor)


def content_of(tensor: Tensor) -> Any:
    """What changes if the tensor is written to; of large ones, only if torch knows of it."""
    if tensor.nbytes > LARGE or not tensor.is_cpu:
        return tensor._version
    return checksums([tensor])[0]


class Watch:
    """One call of the function: told of every tensor that goes into an operation or comes out."""

    def __init__(self, outside: Outside, storages: Iterable[int] = ()) -> None:
        self.known, self._outside = set(outside.known), outside
        self.read: list[weakref.ref[Tensor]] = []  # tensors from outside
        self._storages = outside.storages | set(storages)
        self._records: list[weakref.ref[Tensor]] = []  # tensors of a record
        self._constants: list[weakref.ref[Tensor]] = []  # made in this call, of no record

    def meet(self, tensor: Tensor) -> None:
        """A tensor that is not a record's, and not known, goes into an operation."""
        self.known.add(id(tensor))
        if storage_of(tensor) in self._storages:
            raise PrivacyError(
                f"the loss function reads a tensor of shape {list(tensor.shape)} that lies in the "
                "private batch or data set, from outside its arguments: it would see other "
                "records. Use the arguments of the function alone; it is given one record."
            )
        self.read.append(weakref.ref(tensor))

    def made(self, result: Any) -> None:
        """What an operation gave: of a record, or of constants."""
        if isinstance(result, Tensor):
            if is_wrapped(result):
                self._records.append(weakref.ref(result))
            else:
                self.known.add(id(result))
                self._constants.append(weakref.ref(result))
        elif isinstance(result, (tuple, list)):
            for value in result:
                self.made(value)

    def keep(self, tensor: Tensor) -> None:
        """A tensor of a record that no operation made: an argument."""
        self._records.append(weakref.ref(tensor))

    def views_of(self, tensor: Tensor) -> list[Tensor]:
        """All tensors that lie in the same memory, if it was allocated in this call; else none."""
        place = storage_of(tensor)
        if not place or not tensor.untyped_storage().resizable():  # numpy's, or shared with it
            return []
        model = self._outside.model
        outside = [*model.parameters(), *model.buffers(), *alive(self.read)]
        if place in self._storages or any(storage_of(t) == place for t in outside):
            return []
        constants = {id(t): t for t in alive(self._constants) if not is_wrapped(t)}
        return [t for t in constants.values() if storage_of(t) == place]

    def remains(self) -> list[Tensor]:
        """Tensors of records that somebody still holds, though the call is over."""
        for generation in (None, 0, 2):  # cycles of references are nobody's
            if generation is not None:
                gc.collect(generation)
            if not any(reference() is not None for reference in self._records):
                return []
        return alive(self._records)


def alive(references: Iterable[weakref.ref[Tensor]]) -> list[Tensor]:
    return [t for t in (reference() for reference in references) if t is not None]


def storage_of(tensor: Tensor) -> int:
    """The address of its memory; 0 if it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, or a wrapper
        return 0


def refuse_remains(model: nn.Module, tensors: list[Tensor], roots: dict[str, Any]) -> None:
    """Names the places where tensors of records are kept."""
    if not tensors:
        return
    places = [place for t in tensors[:8] for place in places_of(t, roots)] or [
        f"a tensor of shape {list(t.shape)}" for t in tensors[:3]
    ]
    raise PrivacyError(
        f"after the call, {', '.join(sorted(set(places))[:5])} still holds what the loss function "
        f"computed from a record of {type(model).__name__}'s batch. The next step would see it, "
        "and so would whoever has the model. Leave nothing behind: return it in the loss, or "
        "detach what is needed from the result of another call. The losses of the last batch are "
        "in private.sensitive.losses."
    )


def places_of(tensor: Tensor, roots: dict[str, Any]) -> list[str]:
    """Paths from the roots to the tensor, through modules, containers and objects."""
    found, seen, stack = [], set(), [(name, root, 0) for name, root in roots.items()]
    while stack:
        path, value, depth = stack.pop()
        if value is tensor:
            found.append(path)
        if id(value) in seen or depth > 12 or isinstance(value, (Tensor, type, str, bytes)):
            continue
        seen.add(id(value))
        stack += [(f"{path}{step}", inner, depth + 1) for step, inner in parts_of(value)]
    return found


def parts_of(value: Any) -> list[tuple[str, Any]]:
    """What a value holds, with how to reach it."""
    if isinstance(value, nn.Module):
        stores = ("_parameters", "_buffers", "_modules")
        inner = {k: v for k, v in vars(value).items() if k not in stores}
        for store in stores:
            inner |= dict(getattr(value, store).items())
        return [(f".{name}", part) for name, part in inner.items()]
    if isinstance(value, dict):
        return [(f"[{key!r:.40}]", part) for key, part in list(dict.items(value))]
    if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        return [(f"[{k}]", part) for k, part in enumerate(list(value))]
    if isinstance(value, ModuleType):
        return []
    if isinstance(value, MethodType):
        return [(".__self__", value.__self__), ("", value.__func__)]
    if isinstance(value, functools.partial):
        return [("", value.func), (" (bound)", value.args), (" (bound)", value.keywords)]
    if isinstance(value, FunctionType):
        return of_function(value)
    if isinstance(value, CustomOpDef):
        return [("", value._init_fn)]
    slots = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
    inner = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    inner |= getattr(value, "__dict__", {})
    return [(f".{name}", part) for name, part in inner.items()]


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
    for name in names_in(function.__code__):
        if name in function.__globals__:
            parts.append((f" (global) {name}", function.__globals__[name]))
    return parts


def names_in(code: CodeType) -> set[str]:
    """The globals that a code names, inner functions included."""
    inner = [names_in(c) for c in code.co_consts if isinstance(c, CodeType)]
    return set(code.co_names).union(*inner)
