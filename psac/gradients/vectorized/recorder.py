"""What a function computes from parameters, recorded while it runs for all records at once.

Under `torch.vmap` the function sees one record, and torch computes all of them in one go.  The
recorder is a function mode inside: every torch call passes it, with tensors that vmap has marked as
one per record and with parameters that are not.

- Operations that have a rule (`rules/`) run as they would in an ordinary step: the record axis is
  folded into the operation's own batch axis.  The rule keeps what the per-sample gradient needs.
- Anywhere else, a tensor of parameters that meets records is given one copy for each record
  (a view: no memory), so that autograd itself computes per-sample gradients of it.

Either way a parameter is cut off from the graph of the records.  The ordinary weight gradient is
never computed, and there is no axis to guess: records come first by construction.

Guarantee: a gradient that reaches a parameter by any other way (`escapes`) is seen, because the
backward asks for it; nothing of such a batch is used.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode

from psac.gradients.contributions.base import Contribution, Dense
from psac.gradients.errors import NotVectorized, PrivacyError
from psac.gradients.isolation.reach import is_library
from psac.gradients.isolation.watch import Watch, is_wrapped
from psac.gradients.precision import HALF
from psac.gradients.rules import FUNCTIONS, OF_COPIES, RULES, chance, embedding, selection
from psac.gradients.rules.physical import physically
from psac.gradients.vectorized.libraries import OPERATORS, refuse_operator_in_python
from psac.gradients.vectorized.written import becomes_of_records, is_refused_write

Uses = Iterable[tuple[Tensor, Contribution]]  # of tensors of parameters

# Functions of torch that are written in Python and take parameters: what they call passes the
# recorder too.
TRANSPARENT = frozenset(
    {
        F.multi_head_attention_forward,
        F.embedding,
        F.layer_norm,
        F.group_norm,
        F.instance_norm,
        F.batch_norm,
        F.triplet_margin_with_distance_loss,
        torch.functional.einsum,
    }
)
ASKS_FOR_MODES = (
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
)
CALLED = (types.FunctionType, types.MethodType, functools.partial, nn.Module)
# What an operation may raise because of the values of one record.
OF_VALUES = (RuntimeError, LookupError, ValueError, ArithmeticError, NotVectorized)
PLAIN = frozenset({Tensor, nn.Parameter})
STRIDES = (Tensor.stride, Tensor.storage_offset)
NOT_IN_PLACE = ("__index__", "__int__", "__invert__", "__iter__")
AttributeOfTensor = type(Tensor.shape.__get__)  # type: ignore[attr-defined]  # how `x.shape` comes to a function mode


class Start(torch.autograd.Function):
    """A tensor that no gradient has reached yet, made part of the graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor) -> Tensor:
        return value.detach()  # the same memory, and no view: it may be written in place

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        return None, None


class Recorder(TorchFunctionMode):
    """The mode; `arrive` is told of each use of parameters when its output gradient is there."""

    def __init__(self, num_samples: int, watch: Watch, randomness: str = "different") -> None:
        super().__init__()
        self.num_samples, self.watch, self.level = num_samples, watch, 0
        self.randomness = randomness
        self.anchor = torch.ones((), requires_grad=True)
        self.sources: dict[int, Tensor] = {}  # tensors of parameters, by id
        self.uses: dict[int, int] = {}  # how often each was used
        self.versions: dict[int, int] = {}  # when each was used
        self.rules: dict[int, dict[str, None]] = {}  # by source: the rules that served
        self.arrive: Callable[[Uses], Any] = pass_over
        self.draws: dict[int, tuple[Tensor, chance.Place]] = {}  # one number for each record
        self.shared_draws: Container[chance.Place] = ()  # one number for all, because it must be
        self.stopped: Exception | None = None  # why the function must run again
        self.follows_paths = False  # whether records with other values may be left out
        self.selects = False  # whether rows that a mask selects may be computed with the others
        self.selected: dict[int, selection.Selection] = {}  # by id
        self.only_copies = False  # whether every parameter enters as one copy for each record
        self.is_half = False  # whether something was computed in half precision
        self.operations: list[tuple] = []  # what met parameters: the signature of the function
        self._copies: dict[int, Tensor] = {}

    # What rules call
    def physical(self, tensor: Tensor) -> Tensor:
        """All records of a tensor, along the first axis."""
        axis = _functorch.maybe_get_bdim(tensor)
        value = _functorch.get_unwrapped(tensor)
        return value if axis == 0 else value.movedim(axis, 0)

    def of_records(self, value: Tensor) -> Tensor:
        """What `physical` undoes."""
        wrapped = _functorch._add_batch_dim(value, 0, self.level)
        self.watch.keep(wrapped)
        return wrapped

    def tap(
        self,
        rule: str,
        output: Tensor,
        sources: Sequence[Tensor | None],
        uses: Callable[[Tensor], Uses],
        saved: Sequence[Tensor] = (),
    ) -> Tensor:
        """`output` was computed from `sources` cut off; `uses` tells what its gradient adds.

        Sources that want no gradient are passed over.  `saved` is what `uses` reads: it must not be
        written to until then.
        """
        trained = [source for source in sources if source is not None and source.requires_grad]
        if not trained or not torch.is_grad_enabled():
            return output
        self.is_half = self.is_half or output.dtype in HALF
        for source in trained:
            key = id(source)
            self.sources[key] = source
            self.uses[key] = self.uses.get(key, 0) + 1
            self.rules.setdefault(key, {})[rule] = None
            if self.versions.setdefault(key, source._version) != source._version:
                raise NotVectorized("a tensor made of parameters is written in place between uses")
            self.operations.append((rule, key if source.is_leaf else source.shape))
        if not output.requires_grad:
            output = self.started(output)
        versions = [tensor._version for tensor in saved]

        def arrive(grad: Tensor) -> None:
            if versions != [tensor._version for tensor in saved]:
                raise PrivacyError(
                    f"a tensor that {rule} needs for its gradient was written in place after it. "
                    "Leave the in-place operation out, or clone the tensor first."
                )
            self.arrive(uses(grad))

        output.register_hook(arrive)
        return output

    def started(self, tensor: Tensor) -> Tensor:
        """The same, where gradients begin; the backward goes as far as the anchor."""
        return Start.apply(self.anchor, tensor)  # type: ignore[return-value]

    def copies(self, source: Tensor, rule: str) -> Tensor:
        """One copy of a tensor of parameters for each record."""
        key = id(source)
        if key not in self._copies:
            with physically():
                value = source.detach().unsqueeze(0).expand(self.num_samples, *source.shape)
                value = self.tap(rule, value, [source], lambda g: [(source, Dense(g))])
            self._copies[key] = self.of_records(value)
        else:
            self.rules[key][rule] = None
        return self._copies[key]

    def one_for_each(self, input: Tensor) -> Tensor:
        """The input of a layer, of which ordinary code has one for each record of a batch.

        `queries.expand(len(x), -1, -1)` has an axis of length one here, and is a parameter.
        """
        if is_wrapped(input) or not input.requires_grad or not torch.is_grad_enabled():
            return input
        is_batch = input.dim() > 2 and 1 in input.shape[:-1]
        return self.copies(input, "expand") if is_batch and self.serves(input) else input

    def close(self) -> None:
        """The function is over: nobody needs copies as tensors of records any more."""
        self._copies, self.draws, self.selected = {}, {}, {}

    def for_each(self, tensor: Tensor, rule: str) -> Tensor:
        """A tensor of records, whatever it was."""
        if is_wrapped(tensor):
            return tensor
        if tensor.requires_grad and torch.is_grad_enabled():
            return self.copies(tensor, rule)
        with physically():
            value = tensor.expand(self.num_samples, *tensor.shape)
        return self.of_records(value)

    def stop(self, reason: Exception) -> NoReturn:
        """The function must run again; it cannot prevent that by catching the exception."""
        self.stopped = reason
        raise reason

    def gives_to_records(self, constant: Tensor) -> bool:
        """Makes a tensor of records of one that was made in this call, if it is that."""
        return becomes_of_records(self, constant)

    def serves(self, *tensors: Tensor | None) -> bool:
        """Whether rules know what to do: real numbers, and no transform of the user's own."""
        if _functorch.maybe_current_level() != self.level:
            return False
        for tensor in tensors:
            if tensor is None:
                continue
            if tensor.is_complex() or (is_wrapped(tensor) and self._is_foreign(tensor)):
                return False
        return True

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Whether a wrapped tensor is wrapped by another transform (torch.func.grad, ...)."""
        return (
            not _functorch.is_batchedtensor(tensor)
            or _functorch.maybe_get_level(tensor) != self.level
            or is_wrapped(_functorch.get_unwrapped(tensor))
        )

    # The mode
    def __torch_function__(
        self, func: Any, types_: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return self._run(func, args, kwargs or {})
        except OF_VALUES as error:
            self.watch.raised(error)
            raise

    def _run(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        if type(func) is AttributeOfTensor:
            source, rule = args[0], RULES.get(func)
            if id(source) in self.selected:
                selection.attribute(self, func.__self__.__name__)
            if not is_wrapped(source) and id(source) not in self.watch.known:
                self.watch.meet(source)
            result = NotImplemented if rule is None else rule(self, *args)
            if result is NotImplemented:
                result = func(*args)
                if isinstance(result, Tensor):  # x.T, x.mT, x.real
                    self.watch.made_by_attribute(result, source)
            return result
        if self.selected:
            result = selection.applied(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        shared, records = self._look(args, kwargs)
        rule = RULES.get(func)
        if rule is not None and not (shared and self.only_copies and func not in OF_COPIES):
            result = rule(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in TRANSPARENT:
            with self:
                return transparent(func)(*args, **kwargs)
        if kwargs.get("generator") is not None:
            if records:
                raise NotVectorized("numbers for a record are drawn from a generator of your own")
            return self._drawn_once(func, args, kwargs)
        if isinstance(func, OPERATORS):
            refuse_operator_in_python(func)
        if records and shared and torch.is_grad_enabled():
            name = getattr(func, "__name__", str(func))
            if is_in_place(name) and is_trained(args[0]) and not self.gives_to_records(args[0]):
                raise NotVectorized(f"{name} writes a record into a tensor of parameters")
            name = name.strip("_")
            args = self._replaced(args, name)
            kwargs = {key: self._replaced(value, name) for key, value in kwargs.items()}
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if not is_refused_write(error):
                raise
            result = self._written(func, args, kwargs, error)
        if kwargs.get("requires_grad") and is_wrapped(result):  # vmap passes over it
            with self:
                result.requires_grad_()
        self.watch.made(result)
        if self.draws:
            self._follow(result, args)
        return result

    def _written(
        self, func: Any, args: tuple, kwargs: Mapping[str, Any], error: RuntimeError
    ) -> Any:
        """An operation in place, on a tensor that was made in this call."""
        target = next(iter(tensors_in((*args, *kwargs.values()))), None)
        place = chance.place_of_draw(target, error)
        if place is not None and place in self.shared_draws:
            with physically():
                return func(*args, **kwargs)
        if target is None or not self.gives_to_records(target):
            raise error
        if place is not None:
            self.draws[id(target)] = target, place
        return func(*args, **kwargs)

    def _follow(self, result: Any, args: tuple) -> None:
        """What is computed from a draw alone: `torch.rand(1) < 0.5`."""
        if isinstance(result, Tensor) and is_wrapped(result) and result.numel() == 1:
            operands = [id(t) for t in tensors_in(args) if is_wrapped(t)]
            if operands and all(key in self.draws for key in operands):
                self.draws[id(result)] = result, self.draws[operands[0]][1]

    def _look(self, args: tuple, kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
        """Whether there are trainable tensors that all records share, and tensors of records."""
        if torch._C._len_torch_dispatch_stack():
            raise NotVectorized("a TorchDispatchMode is on, which sees all records at once")
        shared, records, known = False, False, self.watch.known
        stack = [*args, *kwargs.values()]
        while stack:
            value = stack.pop()
            if isinstance(value, Tensor):
                if is_wrapped(value):
                    records = True
                    continue
                if type(value) not in PLAIN and has_operations(type(value)):
                    raise NotVectorized(
                        f"{type(value).__name__} is a class of tensors with operations of its own"
                    )
                if id(value) not in known:
                    self.watch.meet(value)
                shared = shared or value.requires_grad
            elif isinstance(value, (list, tuple)):
                stack += value
            elif isinstance(value, dict):
                stack += value.values()
        return shared, records

    def _replaced(self, value: Any, rule: str) -> Any:
        if isinstance(value, Tensor):
            if value.requires_grad and not is_wrapped(value):
                return self.copies(value, rule)
            return value
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(self._replaced(v, rule) for v in value)
        return value

    def _drawn_once(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        """Numbers from a generator of the user's own: the same for all records."""
        with physically():
            value = func(*args, **kwargs)
        self.watch.made(value)
        return value


class WithinFunction(TorchFunctionMode):
    """Inside an autograd.Function, which the recorder takes as one call."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return self._run(func, args, kwargs or {})
        except OF_VALUES as error:
            self.watch.raised(error)
            raise

    def _run(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        if isinstance(func, OPERATORS):
            refuse_operator_in_python(func)
        if func in STRIDES and is_wrapped(args[0]):
            raise NotVectorized("strides, which count other records, are asked for in a Function")
        for tensor in tensors_in((*args, *kwargs.values())):
            if not is_wrapped(tensor) and id(tensor) not in self.watch.known:
                self.watch.meet(tensor)
        if func in TRANSPARENT:
            with self:
                return transparent(func)(*args, **kwargs)
        result = NotImplemented
        if func in FUNCTIONS[embedding.embedding]:
            result = embedding.without_padding(self, *args, **kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
        self.watch.made(result)
        return result


@functools.lru_cache
def has_operations(kind: type) -> bool:
    """Whether a class of tensors has code of the user's, which would see all records."""
    own = [k for k in kind.__mro__ if not is_library(k)]
    return any(
        name in vars(k) for k in own for name in ("__torch_function__", "__torch_dispatch__")
    )


def pass_over(uses: Uses) -> None:
    """A gradient that the function takes itself adds nothing."""


def is_in_place(name: str) -> bool:
    """Whether torch's function of this name writes to its first argument: add_, __iadd__."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in NOT_IN_PLACE)
    return name.endswith("_")


def is_trained(value: Any) -> bool:
    """Whether it is a tensor of parameters, the same for all records."""
    return isinstance(value, Tensor) and not is_wrapped(value) and value.requires_grad


def tensors_in(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def under(mode: TorchFunctionMode, value: Any) -> Any:
    """Functions that torch is given (hooks, distances): it calls them when the mode is off."""
    if isinstance(value, tuple):
        return tuple(under(mode, part) for part in value)
    if isinstance(value, dict):
        return {key: under(mode, part) for key, part in value.items()}
    if not isinstance(value, CALLED):
        return value

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return value(*args, **kwargs)

    return run


_transparent: dict[Any, Any] = {}


def transparent(func: Any) -> Any:
    """The same function, whose body runs although a function mode is on."""
    if func not in _transparent:
        names = dict.fromkeys(ASKS_FOR_MODES, _never)
        twin = types.FunctionType(
            func.__code__,
            {**func.__globals__, **names},
            func.__name__,
            func.__defaults__,
            func.__closure__,
        )
        twin.__kwdefaults__ = func.__kwdefaults__
        _transparent[func] = twin
    return _transparent[func]


def _never(*_: Any) -> bool:
    return False
