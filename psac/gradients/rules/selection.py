"""What a mask of the record's own selects: `losses[mask].mean()`, `head(x[mask])`.

    active = logits[mask]             # has as many rows as this record's mask is true

Records would have different shapes, so that each number of rows would be a path of its own
(values.py).  But most functions never ask for the number: they compute row by row, and sum or
average.  So a `Selection` keeps all rows, and which of them count; where none may be missing, the
first row that counts stands in the place of those that do not.

Guarantees:

- A record's rows are computed from that record; shapes follow from no values.
- What uses the rows in any other way (asks for their number, mixes them, writes to them) stops the
  evaluation by `NeedsShapes`, and the function runs again path by path.
- Code of torch.jit, which no function mode sees, is run path by path. Any other would find nothing
  but NaN, or whole numbers that nobody uses: its record is computed alone, or the self-check tells.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]

from psac.gradients.errors import PrivacyError
from psac.gradients.rules.physical import are_records, physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder

# By name, as methods, functions and operators have them; never those that write in place.
POINTWISE = frozenset(
    {
        *("add", "sub", "mul", "div", "true_divide", "multiply", "subtract", "divide", "pow"),
        *("radd", "rsub", "rmul", "rdiv", "rtruediv", "truediv", "rpow", "neg", "abs", "square"),
        *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "erf"),
        *("sigmoid", "tanh", "relu", "gelu", "silu", "elu", "leaky_relu", "softplus", "logsigmoid"),
        *("clamp", "clip", "clamp_min", "clamp_max", "maximum", "minimum", "sign", "lerp"),
        *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not"),
        *("and", "or", "invert", "isnan", "isfinite", "nan_to_num", "where", "masked_fill"),
        *("float", "double", "half", "bfloat16", "long", "int", "bool", "to", "type_as"),
        *("detach", "clone", "contiguous"),
    }
)
CONVERSIONS = frozenset({Tensor.__float__, Tensor.__int__, Tensor.__bool__})
LIKE = frozenset({"to", "type_as"})  # the result is the first argument, in the other's type
TOLD = frozenset({"dim", "ndimension", "is_floating_point", "is_complex", "get_device"})
ATTRIBUTES = frozenset({"dtype", "device", "requires_grad", "ndim", "layout", "is_cuda"})
WEIGHTED_TERMS = (F.binary_cross_entropy, F.binary_cross_entropy_with_logits)
TERMS = frozenset({F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, *WEIGHTED_TERMS})

OF_CLASSES = (F.cross_entropy, F.nll_loss)
OLD_SETTINGS = frozenset({"size_average", "reduce"})
signature = functools.cache(inspect.signature)


class NeedsShapes(Exception):
    """Internal: the function must run again, with the rows that count and no others."""


class Selection(NamedTuple):
    seen: Tensor  # what the function has
    rows: Tensor  # [rows, ...] for each record
    mask: Tensor  # [rows]: which count


def selected(rec: Recorder, input: Tensor, mask: Any) -> Any:
    """`input[mask]`"""
    if not rec.selects or not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        return NotImplemented
    if are_records(input, mask) != [True, True] or not rec.serves(input, mask):
        return NotImplemented
    k = mask.dim()
    if not 0 < k <= input.dim() or mask.shape != input.shape[:k] or not mask.numel():
        return NotImplemented
    with physically():
        rows = rec.physical(input).flatten(1, k)
        counted = rec.physical(mask).flatten(1).clone()  # the function may write to its mask
        known = [s.mask for s in rec.selected.values()]
        same = (m for m in known if torch.equal(rec.physical(m), counted))
        of_rows = counted.view(*counted.shape, *[1] * (rows.dim() - 2))
        first = counted.to(torch.uint8).argmax(1)
        stand_in = rows.detach()[torch.arange(len(rows), device=rows.device), first].unsqueeze(1)
        rows = rec.of_records(torch.where(of_rows, rows, stand_in))
        mask = next(same, None)
        mask = rec.of_records(counted) if mask is None else mask
    return shown(rec, rows, mask)


def selected_steps(rec: Recorder, input: Tensor, length: Tensor, batch_first: bool) -> Any:
    """Packed sequences of one record: its steps, and how many sequences have each."""
    steps = input.shape[1 if batch_first else 0]
    if not rec.selects or not are_records(input)[0] or not are_records(length)[0] or not steps:
        return NotImplemented
    with physically():
        lengths = rec.physical(length).reshape(rec.num_samples)
        if bool(((lengths < 1) | (lengths > steps)).any()):
            return NotImplemented  # torch refuses them
        values = rec.physical(input).squeeze(1 if batch_first else 2)
        mask = rec.of_records(torch.arange(steps) < lengths.unsqueeze(1))
        sizes, rows = (torch.ones(steps, dtype=torch.int64) for _ in range(2))
    rec.watch.made((sizes, rows))
    rec.selected[id(sizes)] = Selection(sizes, rows, mask)
    return shown(rec, rec.of_records(values), mask), sizes


def shown(rec: Recorder, rows: Tensor, mask: Tensor) -> Tensor:
    """What the function gets for the rows."""
    with physically():
        value = rec.physical(rows)
        if value.is_floating_point():
            value = (value[:, :1] * math.nan).expand_as(value)
        elif value.dtype is torch.bool:
            value = value.logical_not()
        else:
            value = torch.full_like(value[:, :1], unlikely(value.dtype)).expand_as(value)
        seen = rec.of_records(value)
    rec.selected[id(seen)] = Selection(seen, rows, mask)
    return seen


def unlikely(dtype: torch.dtype) -> int:
    """A number that is no class, place or count."""
    limits = torch.iinfo(dtype)
    return limits.min or limits.max


def attribute(rec: Recorder, name: str) -> None:
    if name not in ATTRIBUTES:
        rec.stop(NeedsShapes())


def applied(rec: Recorder, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """A function of something selected, or `NotImplemented` if nothing among its arguments is."""
    given = nested(args, kwargs)
    if _functorch.maybe_current_level() != rec.level:
        given = [within(rec, tensor) for tensor in given]
    parts = [rec.selected[id(t)] for t in given if id(t) in rec.selected]
    if not parts:
        return NotImplemented
    flat = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    result = NotImplemented
    if (
        all(part.mask is parts[0].mask for part in parts)
        and len(parts) == sum(id(t) in rec.selected for t in flat)
        and _functorch.maybe_current_level() == rec.level
        and "out" not in kwargs
    ):

        def plain(value: Any) -> Any:
            return rec.selected[id(value)].rows if id(value) in rec.selected else value

        others = [t for t in flat if id(t) not in rec.selected]
        args, kwargs = tuple(map(plain, args)), {k: plain(v) for k, v in kwargs.items()}
        if not args and "input" in kwargs:
            args = (kwargs.pop("input"),)
        dims = [part.rows.dim() for part in parts]
        with rec:
            try:
                result = Call(rec, func, args, kwargs, parts[0].mask, dims, others).result()
            except (LookupError, RuntimeError, TypeError, ValueError) as error:
                if rec.stopped is not None or isinstance(error, PrivacyError):
                    raise
                # an error of the function's own is raised again by the path that it is on
    if result is NotImplemented:
        rec.stop(NeedsShapes())
    return result


def within(rec: Recorder, tensor: Tensor) -> Tensor:
    """Without what transforms of the user's own (torch.func.grad, ...) put around it."""
    while _functorch.is_functorch_wrapped_tensor(tensor) and (
        _functorch.maybe_get_level(tensor) > rec.level
    ):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def nested(args: tuple, kwargs: Mapping[str, Any]) -> list[Tensor]:
    stack, found = [*args, *kwargs.values()], []
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            stack += value
        elif isinstance(value, dict):
            stack += value.values()
    return found


class Call(NamedTuple):
    """A function of rows, of so many `axes` with that of rows, and of others."""

    rec: Recorder
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mask: Tensor
    axes: list[int]
    others: list[Tensor]

    @property
    def dims(self) -> int:
        return max(self.axes)

    def result(self) -> Any:
        func, name = self.func, getattr(self.func, "__name__", "")
        if func in CONVERSIONS:
            return NotImplemented
        if name.startswith("__"):
            name = name[2:-2]
        if name in TOLD:
            return func(*self.args, **self.kwargs)
        if name == "where" and len(self.args) != 3:
            return NotImplemented
        if name in LIKE and any(self.args[0] is other for other in self.others):
            return self.func(*self.args, **self.kwargs)
        if name in POINTWISE:
            return self.of_rows() if self.fit() else NotImplemented
        if func in TERMS:
            return self.terms() if self.fit() else NotImplemented
        rule: Callable[[Call], Any] | None = BY_NAME.get(name)
        return NotImplemented if rule is None else rule(self)

    def of_rows(self) -> Tensor:
        return shown(self.rec, self.func(*self.args, **self.kwargs), self.mask)

    def fit(self) -> bool:
        """Whether rows meet rows, and the others are the same for all of them."""
        return min(self.axes) == self.dims and all(
            t.dim() < self.dims or (t.dim() == self.dims and t.shape[0] == 1) for t in self.others
        )

    def by_name(self) -> dict[str, Any]:
        """Of a function that is written in Python: its arguments, without old settings."""
        named = signature(self.func).bind(*self.args, **self.kwargs).arguments
        return {k: v for k, v in named.items() if k not in OLD_SETTINGS or v is not None}

    def reduced(self, values: Tensor, reduction: str) -> Any:
        if reduction == "none":
            return shown(self.rec, values, self.mask)
        if reduction not in ("sum", "mean"):
            return NotImplemented
        return self.total(values, tuple(range(values.dim())), reduction == "mean")

    def total(
        self, values: Tensor, axes: tuple[int, ...], mean: bool, keep: bool = False
    ) -> Tensor:
        """Over axes of which the first is that of rows."""
        of_rows = self.mask.view(-1, *[1] * (values.dim() - 1))
        counted = torch.where(of_rows, values, 0)
        if not mean:
            return counted.sum(axes, keep)
        others = math.prod(values.shape[k] for k in axes if k)
        exact = torch.promote_types(values.dtype, torch.float32)  # as torch's own mean
        total = counted.sum(axes, keep, dtype=exact)
        return (total / (self.mask.sum().to(exact) * others)).to(values.dtype)

    def terms(self) -> Any:
        """A loss that is a mean or a sum of terms."""
        named = self.by_name()
        reduction = named.pop("reduction", "mean")
        if not OLD_SETTINGS.isdisjoint(named):
            return NotImplemented
        if named.get("weight") is not None and self.func not in WEIGHTED_TERMS:
            return NotImplemented  # its mean is over the sum of the weights
        return self.reduced(self.func(**named, reduction="none"), reduction)


def with_classes(call: Call) -> Any:
    """Cross entropy: rows that do not count have a class that is ignored."""
    if call.func not in OF_CLASSES:
        return NotImplemented
    named = call.by_name()
    target = named["target"]
    if call.axes.count(1) != 1 or call.axes.count(2) != 1 or target.is_floating_point():
        return NotImplemented
    if target.dim() != 1 or not OLD_SETTINGS.isdisjoint(named):
        return NotImplemented
    named["target"] = torch.where(call.mask, target, named.get("ignore_index", -100))
    values = call.func(**named)
    is_of_rows = named.get("reduction") == "none"
    return shown(call.rec, values, call.mask) if is_of_rows else values


def over_axes(call: Call) -> Any:
    """`sum` and `mean`."""
    values, *given = call.args
    named = dict(call.kwargs)
    axes = named.pop("dim", named.pop("axis", given.pop(0) if given else None))
    keep = named.pop("keepdim", given.pop(0) if given else False)
    if named or given:
        return NotImplemented
    if axes is None:
        axes = tuple(range(call.dims))
    if isinstance(axes, int):
        axes = (axes,)
    axes = tuple(sorted(k % call.dims for k in axes))
    mean = call.func.__name__ == "mean"
    if mean and not values.is_floating_point():
        return NotImplemented
    if 0 in axes:
        return call.total(values, axes, mean, keep)
    result = values.mean(axes, keep) if mean else values.sum(axes, keep)
    return shown(call.rec, result, call.mask)


def in_shape(call: Call) -> Any:
    """`view` and `reshape` that leave rows as they are."""
    values, *shape = call.args
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = [*shape[0]]
    inner = tuple(values.shape[1:])
    if call.kwargs or not shape or shape[0] != -1 or any(k < 0 for k in shape[1:]):
        return NotImplemented
    if math.prod(shape[1:]) != math.prod(inner):
        return NotImplemented
    return shown(call.rec, values.reshape(len(values), *shape[1:]), call.mask)


def along_an_axis(call: Call) -> Any:
    """What works along one axis, which is not that of rows: softmax, squeeze, unsqueeze."""
    places = call.dims + (call.func.__name__ == "unsqueeze")
    axis = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    if not isinstance(axis, int) or isinstance(axis, bool) or axis % places == 0:
        return NotImplemented
    return call.of_rows()


def size(call: Call) -> Any:
    """Of an axis that is not that of rows."""
    values, *given = call.args
    axis = call.kwargs.get("dim", given[0] if given else 0)
    return values.size(axis) if axis % call.dims else NotImplemented


def linear(call: Call) -> Any:
    """Also embeddings: only the first argument may be selected."""
    tensors = [t for t in (*call.args[1:], *call.kwargs.values()) if isinstance(t, Tensor)]
    least = 2 if call.func is F.linear else 1
    if call.dims < least or not all(any(t is other for other in call.others) for t in tensors):
        return NotImplemented
    if call.func is F.embedding and call.by_name().get("scale_grad_by_freq"):
        return NotImplemented  # rows that do not count would be counted
    return call.of_rows()


def layer_norm(call: Call) -> Any:
    shape = call.by_name()["normalized_shape"]
    return call.of_rows() if 0 < len(shape) < call.dims else NotImplemented


def first_row(call: Call) -> Any:
    """Of how many sequences have each step: all have the first."""
    values, place = call.args
    is_first = isinstance(place, int) and place == 0 and not any(are_records(values))
    return values[0] if is_first else NotImplemented


def recurrent_layer(call: Call) -> Any:
    """Over steps, of which each record has some; torch.lstm and the like of packed sequences."""
    scan = RECURRENT.get(call.func)
    if scan is None or len(call.args) < 9 or call.kwargs:
        return NotImplemented
    steps, sizes, hx, params, biases, layers, dropout, train, both = call.args
    if any(are_records(sizes)) or (dropout and train and layers > 1) or call.rec.only_copies:
        return NotImplemented
    length, rows = call.mask.sum(), steps.unsqueeze(1)
    result = scan(
        call.rec, rows, hx, params, biases, layers, dropout, train, both, False, length=length
    )
    if result is NotImplemented:
        return result
    return shown(call.rec, result[0].squeeze(1), call.mask), *result[1:]


RECURRENT: dict[Any, Callable[..., Any]] = {}  # by function of torch, filled where rules are listed
BY_NAME: dict[str, Callable[[Call], Any]] = {
    "sum": over_axes,
    "mean": over_axes,
    "view": in_shape,
    "reshape": in_shape,
    "softmax": along_an_axis,
    "log_softmax": along_an_axis,
    "squeeze": along_an_axis,
    "unsqueeze": along_an_axis,
    "size": size,
    "getitem": first_row,
    "lstm": recurrent_layer,
    "gru": recurrent_layer,
    "rnn_tanh": recurrent_layer,
    "rnn_relu": recurrent_layer,
    "linear": linear,
    "embedding": linear,
    "layer_norm": layer_norm,
    "cross_entropy": with_classes,
    "nll_loss": with_classes,
}
