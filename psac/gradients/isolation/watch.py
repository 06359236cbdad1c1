"""What a loss function reads, and what it leaves behind.

`torch.vmap` keeps records apart while the function runs.  Three doors are left, and closed here:

- **In.** A function may read a tensor from outside: a closure, a global, a default.  One that lies
  in the memory of the private batch or data set holds other records, and is refused.  One that
  changes from step to step cannot be judged: `changes` names it.
- **Errors.** An operation on all records may raise for one of them, and the function may catch it.
  `caught` has such an error, and a refusal of psac's own.
- **Out.** A tensor that was computed from a record and outlives the call (an attribute, a list, a
  global) would meet another record in the next step.  `remains` names it, wherever it is kept.

All hold for every operation that passes a torch function mode, which is where `Watch` is told.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch._C import _functorch  # type: ignore[attr-defined]

from psac.gradients.errors import PrivacyError
from psac.gradients.isolation.reach import parts_of

is_wrapped = _functorch.is_functorch_wrapped_tensor


class Watch:
    """One call of the function: told of every tensor that goes into an operation or comes out."""

    def __init__(self, outside: Any, private: Any = None) -> None:
        self.known, self._outside = set(outside.known), outside
        self.read: list[weakref.ref[Tensor]] = []  # tensors from outside
        self._private = outside.storages if private is None else private
        self._records: list[weakref.ref[Tensor]] = []  # tensors of a record
        self._constants: list[weakref.ref[Tensor]] = []  # made in this call, of no record
        self.caught: str | None = None  # what an operation has raised, though the call went on
        self._refused: str | None = None

    def meet(self, tensor: Tensor) -> None:
        """A tensor that is not a record's, and not known, goes into an operation."""
        if storage_of(tensor) in self._private:
            raise PrivacyError(
                f"the loss function reads a tensor of shape {list(tensor.shape)} that lies in the "
                "private batch or data set, from outside its arguments: it would see other "
                "records. Use the arguments of the function alone; it is given one record."
            )
        self.known.add(id(tensor))
        self.read.append(weakref.ref(tensor))

    def raised(self, error: Exception) -> None:
        """An operation has raised, in the function, which may catch it."""
        self.caught = " ".join(str(error).split())  # not the error, which holds tensors
        if isinstance(error, PrivacyError):
            self._refused = str(error)

    def refuse_caught(self) -> None:
        """Raises what psac has refused, though the function went on."""
        if self._refused is not None:
            raise PrivacyError(self._refused)

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

    def made_by_attribute(self, result: Tensor, source: Tensor) -> None:
        """A view of its source, or a tensor that was there before, as `x.grad` is."""
        if is_wrapped(result) or storage_of(result) == storage_of(source):
            self.made(result)
        elif id(result) not in self.known:
            self.meet(result)

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
        if place in self._private or any(storage_of(t) == place for t in outside):
            return []
        constants = {id(t): t for t in alive(self._constants) if not is_wrapped(t)}
        return [t for t in constants.values() if storage_of(t) == place]

    def join(self, earlier: Watch) -> None:
        """Takes in what another call of the same function has read and left."""
        if earlier is not self:
            self.read = [*earlier.read, *self.read]
            self._records = [*earlier._records, *self._records]

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
        f"{', '.join(sorted(set(places))[:5])} still holds a tensor that the loss function "
        f"computed from a record of {type(model).__name__}'s batch. The next step could read it, "
        "and so could anyone who gets the model. Do not store tensors during the call. The losses "
        "of the last batch are in private.sensitive.losses."
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
