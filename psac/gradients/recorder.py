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

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch
from torch._functorch.autograd_function import CustomFunctionHigherOrderOperator
from torch.overrides import TorchFunctionMode

from .contributions import Contribution, Dense
from .errors import NotVectorized, PrivacyError
from .rules import RULES
from .rules.physical import physically
from .watch import Watch, is_wrapped

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
        torch.functional.einsum,
    }
)
ASKS_FOR_MODES = (
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
)
AttributeOfTensor = type(Tensor.shape.__get__)  # how `x.shape` comes to a function mode
OWN_NAMESPACES = ("aten", "prim", "prims", "torch", "higher_order")


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
        self.arrive: Callable[[Uses], None] = list
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
        for source in trained:
            key = id(source)
            self.sources[key] = source
            self.uses[key] = self.uses.get(key, 0) + 1
            self.rules.setdefault(key, {})[rule] = None
            if self.versions.setdefault(key, source._version) != source._version:
                raise NotVectorized("a tensor made of parameters is written in place between uses")
            self.operations.append((rule, key if source.is_leaf else source.shape))
        if not output.requires_grad:
            output = Start.apply(self.anchor, output)
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

    def forget_copies(self) -> None:
        """The function is over: nobody needs them as tensors of records any more."""
        self._copies = {}

    def for_each(self, tensor: Tensor, rule: str) -> Tensor:
        """A tensor of records, whatever it was."""
        if is_wrapped(tensor):
            return tensor
        if tensor.requires_grad and torch.is_grad_enabled():
            return self.copies(tensor, rule)
        with physically():
            value = tensor.expand(self.num_samples, *tensor.shape)
        return self.of_records(value)

    def serves(self, *tensors: Tensor | None) -> bool:
        """Whether rules know what to do: real numbers, and no transform of the user's own."""
        if _functorch.maybe_current_level() != self.level:
            return False
        return all(t is None or not (t.is_complex() or self._is_foreign(t)) for t in tensors)

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Whether it is wrapped by another transform (torch.func.grad, ...)."""
        return is_wrapped(tensor) and not (
            _functorch.is_batchedtensor(tensor)
            and _functorch.maybe_get_level(tensor) == self.level
            and not is_wrapped(_functorch.get_unwrapped(tensor))
        )

    # The mode
    def __torch_function__(
        self, func: Any, types_: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if type(func) is AttributeOfTensor:
            return func(*args)
        kwargs = kwargs or {}
        shared, records = self._look(args, kwargs)
        rule = RULES.get(func)
        if rule is not None:
            result = rule(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in TRANSPARENT:
            with self:
                return transparent(func)(*args, **kwargs)
        if records:
            self._refuse_own_rules(func, args)
            if shared and torch.is_grad_enabled():
                name = getattr(func, "__name__", str(func)).strip("_")
                args = self._replaced(args, name)
                kwargs = {key: self._replaced(value, name) for key, value in kwargs.items()}
        result = func(*args, **kwargs)
        self.watch.made(result)
        return result

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

    def _refuse_own_rules(self, func: Any, args: tuple) -> None:
        """A batching rule of the user's own sees all records at once."""
        if isinstance(func, CustomFunctionHigherOrderOperator):
            function = args[0]
            if function.vmap is not torch.autograd.Function.vmap:
                raise NotVectorized(
                    f"{function.__name__} is an autograd.Function with a vmap rule of its own, "
                    "which sees all records at once. Use generate_vmap_rule = True instead."
                )
        elif isinstance(func, (torch._ops.OpOverloadPacket, torch._ops.OpOverload)):
            name = str(func).replace(".", "::", 1)
            if name.split("::")[0] not in OWN_NAMESPACES and has_batching_rule(func):
                raise NotVectorized(
                    f"the operator {name} has a vmap rule of its own (register_vmap), which sees "
                    "all records at once. Leave it out: torch then calls the operator record by "
                    "record."
                )


def has_batching_rule(func: Any) -> bool:
    packet = func if isinstance(func, torch._ops.OpOverloadPacket) else func.overloadpacket
    names = [getattr(packet, overload)._name for overload in packet.overloads()]
    key = "FuncTorchBatched"
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for name in names)


def tensors_in(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


_transparent: dict[Any, Any] = {}


def transparent(func: Any) -> Any:
    """The same function, whose body runs although a function mode is on."""
    if func not in _transparent:
        names = {name: _never for name in ASKS_FOR_MODES}
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
