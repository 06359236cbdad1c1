"""What a function of the whole batch computes from parameters, recorded row by row.

The recorder is a function mode: every torch call passes it.  Where parameters meet records, the
parameter is cut off from the graph, and the output gradient is taken in the backward (`tap`), with
the record of each of its rows (owners.py).

- Operations that have a rule (`rules.py`) run as they are.
- In operations that broadcast, parameters are copied to each row (as a view).
- In others, each entry of the parameters must be used by one record, or the function is refused.
"""

from __future__ import annotations

import functools
import math
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from psac.gradients.batched.owners import Codes, Mixed, Owners
from psac.gradients.batched.rules import ELEMENTWISE, RULES
from psac.gradients.contributions.base import Dense
from psac.gradients.errors import NotIsolated, NotVectorized, PrivacyError
from psac.gradients.isolation.watch import Watch
from psac.gradients.vectorized.recorder import (
    ASKS_FOR_MODES,
    CALLED,
    AttributeOfTensor,
    Start,
    Uses,
    WithinFunction,
    tensors_in,
    transparent,
    under,
)

# What rows add, from their owners and the output gradient [m, features].
UsesOfRows = Callable[[Owners, Tensor], Uses]
READS = frozenset({"__float__", "__int__", "numpy", "__array__"})
MOST_BYTES = 2**28  # of per-sample gradients of a tensor that no rule knows


class Tap:
    """An output whose gradient is taken: the first gradient, and the codes of its rows."""

    def __init__(
        self,
        text: str,
        axes: int,
        uses: UsesOfRows,
        saved: Sequence[Tensor] = (),
        refusal: str = "",
    ) -> None:
        self.text, self.axes, self.uses, self.refusal = text, axes, uses, refusal
        self.first: Tensor | None = None
        self.digits: list[Tensor] = []  # of each pass
        self.guesses: list[Owners | None] = []  # that explained it
        self._saved = [(tensor, tensor._version) for tensor in saved]

    def rows(self, grad: Tensor) -> Tensor:
        """[m, features]."""
        sides = grad.shape[: self.axes], grad.shape[self.axes :]
        return grad.reshape([math.prod(sizes) for sizes in sides])

    def taken(self, owners: Owners) -> Uses:
        """What its rows add; it keeps nothing."""
        if any(tensor._version != version for tensor, version in self._saved):
            raise PrivacyError(
                f"a tensor that {self.text} needs for its gradient was written in place after it. "
                "Leave the in-place operation out, or clone the tensor first."
            )
        assert self.first is not None
        uses = list(self.uses(owners, self.first))
        self.first, self.uses, self._saved = None, nothing, []
        return uses

    def mixed(self) -> Exception:
        """Several records reach one row."""
        if self.refusal:
            return NotVectorized(self.refusal)
        return NotIsolated(
            f"gradients of several records' losses reach one row of {self.text}: the loss of a "
            "record depends on other records (or a backward of your own is not linear). With "
            "batched=True the loss of each record must be computed from it alone."
        )


def nothing(owners: Owners, grad: Tensor) -> Uses:
    return ()


class RowRecorder(TorchFunctionMode):
    """The mode; `arrive` is told of each use of parameters.

    A tensor is of records, or `shared` (made of parameters alone), or a constant.  With
    `takes_constants`, one that has a row for each record (zeros as a first state) is of records.
    """

    def __init__(
        self,
        num_records: int,
        watch: Watch,
        parameters: Mapping[str, Tensor],
        takes_constants: bool = True,
    ) -> None:
        super().__init__()
        self.num_records, self.watch = num_records, watch
        self.names = {id(p): name for name, p in parameters.items()}
        self.takes_constants, self.took_constants = takes_constants, False
        self.anchor = torch.ones((), requires_grad=True)
        self.shared = {id(p): p for p in parameters.values()}
        self.sources: dict[int, Tensor] = {}
        self.uses: dict[int, int] = {}
        self.rules: dict[int, dict[str, None]] = {}
        self.operations: set[tuple] = set()  # pairs of operations that followed each other
        self.layout = 0  # a number for all shapes
        self.arrive: Callable[[Uses], Any] = list
        self.codes: Codes | None = None
        self.stage = -1  # the pass of the backward
        self.kinds: set[torch.dtype] = set()  # of outputs
        self._owners: dict[int, Owners] = {}  # by number of rows: the last ones
        self._records: dict[int, weakref.ref[Tensor]] = {}
        # By id: what was there before the call; held, so that no id is used twice.
        self._outside: dict[int, Tensor | None] = dict.fromkeys(watch.known)
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
        refusal: str = "",
    ) -> Tensor:
        """`output`, whose first `axes` are rows, was computed from `sources` cut off.

        It must not be a view: that would lose its hook when it is written in place.
        """
        trained = [s for s in sources if s is not None and s.requires_grad]
        if any(s.is_complex() for s in trained):
            raise NotVectorized(f"{rule} has complex parameters")
        for source in trained:
            key = id(source)
            self.sources[key] = source
            self.uses[key] = self.uses.get(key, 0) + 1
            self.rules.setdefault(key, {})[rule] = None
        if not trained:
            return output
        text = f"{rule} of {', '.join(map(self.name, trained))}"
        return self.hook(output, Tap(text, axes, uses, saved, refusal))

    def hook(self, output: Tensor, tap: Tap) -> Tensor:
        if not output.requires_grad:
            output = Start.apply(self.anchor, output)
        self.kinds.add(output.dtype)
        output.register_hook(functools.partial(self._arrived, tap))
        return output

    def is_shared(self, value: Any) -> bool:
        return id(value) in self.shared

    def name(self, source: Tensor) -> str:
        return self.names.get(id(source), f"a tensor {list(source.shape)} of parameters")

    def expanded(self, source: Tensor, shape: Sequence[int], rule: str) -> Tensor:
        """A tensor of parameters, copied to the rows that it is broadcast to."""
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
        n = self.num_records
        refusal = f"{rule} uses {self.name(source)} in a way that psac has no rule for"
        if n * source.nbytes > MOST_BYTES:
            raise NotVectorized(refusal)

        def uses(owners: Owners, grad: Tensor) -> Uses:
            rows = grad.new_zeros(n + 1, len(grad))  # the last one is nobody's
            rows[owners.values, torch.arange(len(grad), device=grad.device)] = grad.squeeze(1)
            yield source, Dense(rows[:n].reshape(n, *source.shape))

        value = source.detach()
        return self.tap(rule, value, source.dim(), [source], uses, refusal=refusal)

    def of_records(self, tensor: Tensor, rule: str) -> Tensor:
        """The same, with entries of records where it was shared."""
        return self.elements(tensor, rule) if self.is_shared(tensor) else tensor

    # The backward
    @torch.no_grad()
    def _arrived(self, tap: Tap, grad: Tensor) -> None:
        if self.stage < 0:
            raise NotVectorized("the function takes gradients by itself (torch.autograd.grad)")
        rows = tap.rows(grad)
        if not self.stage:
            tap.first = rows
            return
        try:
            owners = self._owners_of(tap, rows)
        except Mixed:
            raise tap.mixed() from None
        if owners is not None:
            self.arrive(tap.taken(owners))

    def _owners_of(self, tap: Tap, coded: Tensor) -> Owners | None:
        """None if there are more passes to come."""
        assert tap.first is not None
        assert self.codes is not None
        guess, digits = self._guess(len(coded)), None
        if guess is not None:
            digits = self.codes.digits[self.stage - 1][guess.values]
            if not self.codes.explains(tap.first, coded, digits):
                guess = digits = None
        if digits is None:
            digits, tap.first = self.codes.digits_of(tap.first, coded)
        tap.digits.append(digits)
        tap.guesses.append(guess)
        if self.stage < self.codes.passes:
            return None
        if guess is None or tap.guesses != [guess] * self.codes.passes:
            guess = Owners(self.codes.owners(tap.digits), self.num_records)
            self._owners[len(coded)] = guess
        return guess

    def _guess(self, rows: int) -> Owners | None:
        """As in the operation before; else as many rows for each record."""
        each, odd = divmod(rows, self.num_records)
        if rows not in self._owners and not odd:
            assert self.codes is not None
            records = torch.arange(self.num_records, device=self.codes.values.device)
            self._owners[rows] = Owners(records.repeat_interleave(each), self.num_records)
        return self._owners.get(rows)

    # The mode
    def __torch_function__(
        self, func: Any, types_: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return self._run(func, args, kwargs or {})
        except PrivacyError as error:
            self.watch.raised(error)
            raise

    def _run(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        if any(isinstance(value, CALLED) for value in (*args, *kwargs.values())):
            within = WithinFunction(self.watch)
            args, kwargs = under(within, args), dict(under(within, kwargs))
        if type(func) is AttributeOfTensor:
            result = func(*args)
            if isinstance(result, Tensor):
                self._made(result, *self._look(args, kwargs))
            return result
        shared, records = self._look(args, kwargs)
        name = getattr(func, "__name__", str(func))
        self._note(name, args)
        if name in READS:  # torch would object that inputs have a gradient
            args = (args[0].detach(), *args[1:])
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
            elif not records or id(tensor) not in self.watch.known:
                records = self._is_of_records(tensor) or records
        return shared, records

    def _is_of_records(self, tensor: Tensor) -> bool:
        """Computed from records, or from what is not known to be parameters alone."""
        key = id(tensor)
        reference = self._records.get(key)
        if (reference is not None and reference() is tensor) or tensor.grad_fn is not None:
            return True
        if key not in self.watch.known:
            self.watch.meet(tensor)
            self._outside[key] = tensor
        if not self.takes_constants or key in self._outside:
            return False
        taken = tensor.dim() > 1 and len(tensor) == self.num_records
        self.took_constants = self.took_constants or taken
        return taken

    def _note(self, name: str, args: tuple) -> None:
        tensors = list(tensors_in(args))
        kinds = name, *((t.dim(), t.dtype) for t in tensors)
        self.operations.add((self._last, kinds))
        self.layout = hash((self.layout, name, *(t.shape for t in tensors)))
        self._last = kinds

    def _made(self, result: Any, shared: bool, records: bool) -> None:
        if records:
            self.made_of_records(result)
            return
        for tensor in tensors_in((result,)):
            self._records.pop(id(tensor), None)
            self.watch.known.add(id(tensor))
            if shared and tensor.requires_grad:
                self.shared[id(tensor)] = tensor

    def made_of_records(self, result: Any) -> None:
        for tensor in tensors_in((result,)):
            key = id(tensor)
            if key in self._outside:
                raise PrivacyError(
                    "the loss function writes what it computed from records into a tensor of shape "
                    f"{list(tensor.shape)} that was there before. Leave nothing of a record behind."
                )
            self.shared.pop(key, None)
            self._records[key] = weakref.ref(tensor)
            self.watch.keep(tensor)

    def _meet(self, func: Any, name: str, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        """Parameters meet records."""
        if any(tensor.is_nested for tensor in tensors_in(args)):
            raise NotVectorized(f"{name} has a nested tensor, for which psac has no rule")
        rule = RULES.get(func)
        result = NotImplemented if rule is None else rule(self, *args, **kwargs)
        if result is not NotImplemented:
            return result
        if name in ELEMENTWISE:
            operands = tensors_in((*args, *kwargs.values()))
            shape = torch.broadcast_shapes(*(t.shape for t in operands))
            copy = functools.partial(self.expanded, shape=shape, rule=name)
        elif is_open(func):
            with self:
                return transparent(func)(*args, **kwargs)
        else:
            copy = functools.partial(self.elements, rule=name)
        args = tuple(self._replaced(value, copy) for value in args)
        return func(*args, **{key: self._replaced(v, copy) for key, v in kwargs.items()})

    def _replaced(self, value: Any, copy: Callable[[Tensor], Tensor]) -> Any:
        if isinstance(value, Tensor):
            return copy(value) if self.is_shared(value) else value
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(self._replaced(v, copy) for v in value)
        return value


def is_open(func: Any) -> bool:
    """Whether torch has it in Python, so that what it calls can be seen (`transparent`)."""
    if not isinstance(func, types.FunctionType):
        return False
    asks = not set(ASKS_FOR_MODES).isdisjoint(func.__code__.co_names)
    return asks and func.__module__ in ("torch.nn.functional", "torch.functional")
