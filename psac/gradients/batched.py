"""A loss function that sees the whole batch and returns one loss for each record.

For functions that must see the batch to be fast: packed sequences, routing by index, graphs laid
end to end.  It runs once, as it is.  Operations on parameters run with the parameter cut off, and
their output gradients are taken in the backward, row by row; which record a row belongs to is
learned from gradients (owners.py).  What rows add to per-sample gradients is as in the other ways.

Guarantee, on every call: a gradient of one record's loss that reaches a row or an input of another
record raises `NotIsolated`; one that reaches a parameter unseen raises `NotVectorized`.  A
dependence that has no gradient is left to tests (isolation.py).

A batch with a gradient that is not finite is computed one record at a time.
"""

from __future__ import annotations

import functools
import math
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from . import trees
from .cluster import clusters_of
from .contributions import Dense
from .errors import NotIsolated, NotVectorized, PrivacyError
from .evaluate import Evaluation, LossFunction, OneByOne, refuse_constant
from .libraries import without_branches
from .measured import Measured
from .owners import Codes, Mixed, NotFinite, Owners
from .precision import without_autocast
from .recorder import AttributeOfTensor, Start, Uses, tensors_in, transparent
from .watch import Outside, Watch, storage_of

# What the rows of each record add, from their owners and the output gradient [m, features].
UsesOfRows = Callable[[Owners, Tensor], Uses]
MOST_BYTES = 2**28  # of per-sample gradients of a tensor that no rule knows


class Tap:
    """One output whose gradient is taken: its first gradient, and the codes of its rows."""

    def __init__(self, text: str, axes: int, uses: UsesOfRows, saved: Sequence[Tensor]) -> None:
        self.text, self.axes, self.uses, self.saved = text, axes, uses, saved
        self.versions = [tensor._version for tensor in saved]
        self.first: Tensor | None = None
        self.digits: list[Tensor] = []
        self.mixes: type[Exception] = NotIsolated  # what it means that records share a row


class RowRecorder(TorchFunctionMode):
    """The mode.  A tensor is of records, or `shared`: made of parameters alone, or a constant."""

    def __init__(self, num_records: int, watch: Watch, names: Mapping[int, str]) -> None:
        super().__init__()
        self.num_records, self.watch, self.names = num_records, watch, names
        self.anchor = torch.ones((), requires_grad=True)
        self.shared: dict[int, Tensor] = {}
        self.sources: dict[int, Tensor] = {}
        self.uses: dict[int, int] = {}
        self.rules: dict[int, dict[str, None]] = {}
        self.operations: set[tuple] = set()  # pairs of operations that followed each other
        self.layout = 0  # a number for all shapes
        self.measured: Measured | None = None
        self.codes: Codes | None = None
        self.stage = -1  # the pass of the backward
        self.is_float16 = False
        self._owners: dict[int, Owners] = {}  # by number of rows: the last ones
        self._records: dict[int, weakref.ref[Tensor]] = {}
        self._model = watch.known.copy()
        self._last: tuple = ()

    # What rules call
    def tap(
        self,
        rule: str,
        output: Tensor,
        axes: int,
        sources: Sequence[Tensor | None],
        uses: UsesOfRows,
        saved: Sequence[Tensor] = (),
    ) -> Tensor:
        """`output`, of which the first `axes` are rows, was computed from `sources` cut off."""
        trained = [s for s in sources if s is not None and s.requires_grad]
        if not trained:
            return output
        if any(s.is_complex() for s in trained):
            raise NotVectorized(f"{rule} has complex parameters")
        for source in trained:
            key = id(source)
            self.sources[key] = source
            self.uses[key] = self.uses.get(key, 0) + 1
            self.rules.setdefault(key, {})[rule] = None
        texts = (self.names.get(id(s), f"a tensor {list(s.shape)}") for s in trained)
        return self.hooked(output, Tap(f"{rule} of {', '.join(texts)}", axes, uses, saved))

    def hooked(self, output: Tensor, tap: Tap) -> Tensor:
        if not output.requires_grad:
            output = Start.apply(self.anchor, output)
        self.is_float16 = self.is_float16 or output.dtype is torch.float16
        output.register_hook(functools.partial(self._arrived, tap))
        return output

    def expanded(self, source: Tensor, shape: Sequence[int], rule: str) -> Tensor:
        """A tensor of parameters, copied (as a view) to the rows that it is broadcast to."""
        aligned = (1,) * (len(shape) - source.dim()) + tuple(source.shape)
        leading = next((k for k, size in enumerate(aligned) if size != 1), len(shape))
        axes = list(range(leading))
        if math.prod(shape[:leading]) < self.num_records:
            axes = [k for k, size in enumerate(aligned) if size == 1]
        if all(shape[k] == 1 for k in axes):
            return self.elements(source, rule)
        front, rest = list(range(len(axes))), [k for k in range(len(shape)) if k not in axes]
        value = source.detach().reshape(aligned).expand(shape).movedim(axes, front)

        def uses(owners: Owners, grad: Tensor) -> Uses:
            grad = grad.reshape(len(grad), *(shape[k] for k in rest))
            sums = grad.sum_to_size(len(grad), *(aligned[k] for k in rest))
            yield source, Dense(owners.sums(sums).reshape(-1, *source.shape))

        return self.tap(rule, value, len(axes), [source], uses).movedim(front, axes)

    def elements(self, source: Tensor, rule: str) -> Tensor:
        """A tensor of parameters of which each entry is used by one record."""
        n, name = self.num_records, self.names.get(id(source), f"a tensor {list(source.shape)}")
        refusal = f"{rule} uses {name}, made of parameters, in a way that psac has no rule for"
        if n * source.nbytes > MOST_BYTES:
            raise NotVectorized(refusal)

        def uses(owners: Owners, grad: Tensor) -> Uses:
            rows = grad.new_zeros(n + 1, len(grad))  # the last row is nobody's
            rows[owners.values, torch.arange(len(grad), device=grad.device)] = grad.squeeze(1)
            yield source, Dense(rows[:n].reshape(n, *source.shape))

        value = self.tap(rule, source.detach(), source.dim(), [source], uses)
        hook = next(reversed(value._backward_hooks.values()))  # type: ignore[union-attr]
        hook.args[0].text, hook.args[0].mixes = refusal, NotVectorized
        return value

    def as_records(self, value: Any, rule: str) -> Any:
        return self.elements(value, rule) if id(value) in self.shared else value

    # The backward
    def _arrived(self, tap: Tap, grad: Tensor) -> None:
        with torch.no_grad():
            rows = grad.reshape(math.prod(grad.shape[: tap.axes]), -1)
            if self.stage < 0:
                raise NotVectorized("the function takes gradients by itself (autograd.grad)")
            if not self.stage:
                tap.first = rows
                return
            assert self.codes is not None
            assert tap.first is not None
            guess = self._guess(len(rows))
            try:
                digits = self.codes.digits[self.stage - 1][guess.values]
                tap.digits.append(self.codes.digits_of(tap.first, rows, digits))
                if self.stage < self.codes.passes:
                    return
                found = self.codes.owners(tap.digits)
            except Mixed:
                raise tap.mixes(self._mixed(tap)) from None
            if not torch.equal(found, guess.values):
                guess = self._owners[len(rows)] = Owners(found, self.num_records)
            self._add(tap, guess)

    def _guess(self, rows: int) -> Owners:
        """As in the operation before; else as many rows for each record."""
        if rows not in self._owners:
            each = -(-rows // self.num_records)
            records = torch.arange(self.num_records, device=self.codes.values.device)  # type: ignore[union-attr]
            self._owners[rows] = Owners(records.repeat_interleave(each)[:rows], self.num_records)
        return self._owners[rows]

    def _add(self, tap: Tap, owners: Owners) -> None:
        if tap.versions != [tensor._version for tensor in tap.saved]:
            raise PrivacyError(
                f"a tensor that {tap.text} needs for its gradient was written in place after it. "
                "Leave the in-place operation out, or clone the tensor first."
            )
        assert self.measured is not None
        assert tap.first is not None
        self.measured.arrive(tap.uses(owners, tap.first))
        tap.first = None

    def _mixed(self, tap: Tap) -> str:
        if tap.mixes is NotVectorized:
            return tap.text
        return (
            f"in {tap.text}, gradients of several records' losses reach the same row: a record's "
            "loss depends on other records. With batched=True each loss must be computed from its "
            "own record alone."
        )

    # The mode
    def __torch_function__(
        self, func: Any, types_: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if type(func) is AttributeOfTensor:
            result = func(*args)
            if not isinstance(result, Tensor):
                return result
            shared, records = self._look(args, kwargs)
            return self._made(result, shared, records)
        shared, records = self._look(args, kwargs)
        name = getattr(func, "__name__", str(func))
        if records:
            self._note(name, args)
        if shared and records and torch.is_grad_enabled():
            result = self._meet(func, name.strip("_"), args, kwargs)
        else:
            result = func(*args, **kwargs)
        self._made(args[0] if name == "__setitem__" else result, shared, records)
        return result

    def _look(self, args: tuple, kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
        """Whether there are tensors of parameters, and tensors of records."""
        shared = records = False
        for tensor in tensors_in((*args, *kwargs.values()) if kwargs else args):
            if id(tensor) in self.shared:
                shared = True
            elif self._is_of_records(tensor):
                records = True
            elif id(tensor) not in self.watch.known:
                self.watch.meet(tensor)
        return shared, records

    def _is_of_records(self, tensor: Tensor) -> bool:
        """Computed from records, or not known to be made of parameters; or with a row for each."""
        reference = self._records.get(id(tensor))
        if (reference is not None and reference() is tensor) or tensor.requires_grad:
            return True
        one_each = tensor.dim() > 1 and len(tensor) == self.num_records
        return one_each and id(tensor) not in self._model and id(tensor) in self.watch.known

    def _note(self, name: str, args: tuple) -> None:
        tensors = list(tensors_in(args))
        kinds = name, *((t.dim(), t.dtype) for t in tensors)
        self.operations.add((self._last, kinds))
        self.layout = hash((self.layout, name, *(t.shape for t in tensors)))
        self._last = kinds

    def _made(self, result: Any, shared: bool, records: bool) -> Any:
        for tensor in tensors_in((result,)):
            if records:
                self.shared.pop(id(tensor), None)
                self.of_records(tensor)
            else:
                self._records.pop(id(tensor), None)
                self.watch.known.add(id(tensor))
                if shared and tensor.requires_grad:
                    self.shared[id(tensor)] = tensor
        return result

    def of_records(self, tensor: Tensor) -> None:
        self._records[id(tensor)] = weakref.ref(tensor)
        self.watch.keep(tensor)

    def _meet(self, func: Any, name: str, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        """Parameters meet records."""
        from .row_rules import ELEMENTWISE, RULES

        rule = RULES.get(func)
        result = NotImplemented if rule is None else rule(self, *args, **kwargs)
        if result is not NotImplemented:
            return result
        if name in ELEMENTWISE:
            given = [*tensors_in(args), *tensors_in(kwargs.values())]
            shape = torch.broadcast_shapes(*(t.shape for t in given))
            replace = functools.partial(self._replaced, lambda s: self.expanded(s, shape, name))
        elif isinstance(func, types.FunctionType):
            with self:
                return transparent(func)(*args, **kwargs)
        else:
            replace = functools.partial(self._replaced, lambda s: self.elements(s, name))
        return func(*map(replace, args), **{key: replace(v) for key, v in kwargs.items()})

    def _replaced(self, copy: Callable[[Tensor], Tensor], value: Any) -> Any:
        if isinstance(value, Tensor):
            return copy(value) if id(value) in self.shared else value
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(self._replaced(copy, v) for v in value)
        return value
