"""Code that depends on the values of a tensor: branches, and shapes that follow from a mask.

A record's value decides which code runs for it.  All records for which it is the same run together;
where it differs, `Differ` says so, and the batch is evaluated path by path (paths.py).  So each
record runs exactly the code that it would run alone.

Numbers with a fraction differ from record to record.  They are left to the evaluation of one record
at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from psac.gradients.rules.chance import NeedsSharing
from psac.gradients.rules.embedding import getitem as row_of_table
from psac.gradients.rules.physical import are_records, physically
from psac.gradients.rules.selection import selected, selected_steps
from psac.gradients.rules.writing import is_mask, setitem_of_one_value, setitem_of_places

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder

WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class NeedsPaths(Exception):
    """Internal: the function depends on values, and must be evaluated path by path."""


class Differ(Exception):
    """Internal: these records take different paths; entry k is the path of record k."""

    def __init__(self, paths: list[Any]) -> None:
        super().__init__("records take different paths")
        order = {path: number for number, path in enumerate(dict.fromkeys(paths))}
        self.labels = torch.tensor([order[path] for path in paths])


def same_for_all(rec: Recorder, values: list[Any]) -> Any:
    """The value that all records have."""
    if not rec.follows_paths:
        rec.stop(NeedsPaths())
    if any(value != values[0] for value in values):
        rec.stop(Differ(values))
    return values[0]


def value_of(rec: Recorder, tensor: Tensor, *_: Any) -> Any:
    """`.item()`, `if tensor:` and the like."""
    if id(tensor) in rec.draws:
        rec.stop(NeedsSharing(rec.draws[id(tensor)][1]))
    if not of_few_values(rec, tensor) or tensor.numel() != 1:
        return NotImplemented
    with physically():
        values = rec.physical(tensor).flatten().tolist()
    return same_for_all(rec, values)


def as_bool(rec: Recorder, tensor: Tensor) -> Any:
    return converted(bool, value_of(rec, tensor))


def as_int(rec: Recorder, tensor: Tensor) -> Any:
    return converted(int, value_of(rec, tensor))


def as_float(rec: Recorder, tensor: Tensor) -> Any:
    return converted(float, value_of(rec, tensor))


def converted(kind: Callable[[Any], Any], value: Any) -> Any:
    return value if value is NotImplemented else kind(value)


def formatted(rec: Recorder, tensor: Tensor, spec: str) -> Any:
    """`f"expert_{number}"`"""
    value = value_of(rec, tensor)
    return value if value is NotImplemented else format(value, spec)


def sized(function: Callable[..., Any], first: int = 0) -> Callable[..., Any]:
    """For functions with sizes or ends, from argument `first` on, that are numbers of a record."""

    def rule(rec: Recorder, *args: Any, **settings: Any) -> Any:
        if not any(is_number(part) for arg in args[first:] for part in parts_of(arg)):
            return NotImplemented
        numbers = []
        for arg in args[first:]:
            values = [value_of(rec, part) if is_number(part) else part for part in parts_of(arg)]
            if any(value is NotImplemented for value in values):
                return NotImplemented
            numbers.append(values if isinstance(arg, (list, tuple)) else values[0])
        with rec:
            return function(*args[:first], *numbers, **settings)

    return rule


def is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0 and any(are_records(value))


def parts_of(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def tolist(rec: Recorder, tensor: Tensor) -> Any:
    if not of_few_values(rec, tensor):
        return NotImplemented
    with physically():
        values = rec.physical(tensor).tolist()
    return same_for_all(rec, values if tensor.dim() == 0 else list(map(frozen, values)))


def frozen(values: Any) -> Any:
    """Lists can be compared, but not counted."""
    return tuple(map(frozen, values)) if isinstance(values, list) else values


def of_few_values(rec: Recorder, tensor: Tensor) -> bool:
    return any(are_records(tensor)) and rec.serves(tensor) and tensor.dtype in WHOLE


def decided(function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a function whose result has a shape, or is a bool, that follows from values.

    It runs record by record.
    """

    def rule(rec: Recorder, *args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not any(are_records(*tensors)) or not rec.serves(*tensors):
            return NotImplemented

        def given(value: Any) -> Any:
            return rec.for_each(value, "values") if isinstance(value, Tensor) else value

        def one(value: Any, k: int) -> Any:
            return rec.physical(value)[k] if isinstance(value, Tensor) else value

        args, kwargs = tuple(map(given, args)), {key: given(v) for key, v in kwargs.items()}
        with physically():
            results = []
            for k in range(rec.num_samples):
                named = {key: one(value, k) for key, value in kwargs.items()}
                results.append(function(*(one(value, k) for value in args), **named))
            shapes = [shape_of(result) for result in results]
        same_for_all(rec, shapes)
        with physically():
            return stacked(rec, results)

    return rule


def shape_of(result: Any) -> Any:
    """What must be the same for all records: shapes of tensors, and all that is no tensor."""
    if isinstance(result, (tuple, list)):
        return tuple(map(shape_of, result))
    return tuple(result.shape) if isinstance(result, Tensor) else result


def stacked(rec: Recorder, results: list[Any]) -> Any:
    if isinstance(results[0], Tensor):
        return rec.of_records(torch.stack(results))
    if isinstance(results[0], (tuple, list)):
        return tuple(stacked(rec, list(parts)) for parts in zip(*results, strict=True))
    return results[0]


def where(rec: Recorder, condition: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The places where a condition holds, if that is what is asked for."""
    if args or kwargs:
        return NotImplemented
    return places(rec, condition)


places = decided(lambda condition: torch.where(condition))


def one_hot(rec: Recorder, tensor: Tensor, num_classes: int = -1) -> Any:
    """Without a number of classes, there are as many as the record's largest one says."""
    return NotImplemented if num_classes >= 0 else counted_one_hot(rec, tensor)


counted_one_hot = decided(torch.nn.functional.one_hot)


def with_places(rec: Recorder, index: Any) -> Any:
    """The index, with places instead of masks; None if there is no mask of a record in it."""
    given = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(part, Tensor) and is_mask(part) for part in given):
        return None
    if not rec.serves(*(part for part in given if isinstance(part, Tensor))):
        return None
    found: list[Any] = []
    for part in given:
        if isinstance(part, Tensor) and is_mask(part):
            found += places(rec, part.bool())
        else:
            found.append(part)
    return tuple(found)


def getitem(rec: Recorder, input: Tensor, index: Any) -> Any:
    """`x[mask]`"""
    result = selected(rec, input, index)
    if result is not NotImplemented:
        return result
    index_of_places = with_places(rec, index)
    if index_of_places is None:
        return row_of_table(rec, input, index)
    with rec:
        return input[index_of_places]


def masked_select(rec: Recorder, input: Tensor, mask: Tensor) -> Any:
    result = selected(rec, input, mask) if mask.shape == input.shape else NotImplemented
    return entries(rec, input, mask) if result is NotImplemented else result


entries = decided(torch.masked_select)


def setitem(rec: Recorder, input: Tensor, index: Any, value: Any) -> Any:
    """`x[mask] = value`"""
    result = setitem_of_one_value(rec, input, index, value)
    if result is not NotImplemented:
        return result
    index_of_places = with_places(rec, index)
    if index_of_places is None:
        return setitem_of_places(rec, input, index, value)
    with rec:
        input[index_of_places] = value
    return None


def pack(rec: Recorder, input: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """Sequences of one record, all of the same length as those of the others here."""
    if not any(are_records(input, lengths)) or not rec.serves(input, lengths):
        return NotImplemented
    if any(are_records(lengths)):
        if lengths.numel() != 1:
            return NotImplemented
        result = selected_steps(rec, input, lengths, batch_first)
        if result is not NotImplemented:
            return result
        lengths = torch.tensor([value_of(rec, lengths)])
    if len(lengths) != 1:
        return NotImplemented
    steps = int(lengths)
    with rec:
        data = input[0, :steps] if batch_first else input[:steps, 0]
    return data, torch.ones(steps, dtype=torch.int64)


def unpacked(scan: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of torch.lstm and the like: packed sequences of one record are not packed at all."""

    def rule(rec: Recorder, input: Tensor, second: Any, *rest: Any) -> Any:
        if not isinstance(second, Tensor) or not isinstance(rest[0], (Tensor, tuple, list)):
            return scan(rec, input, second, *rest)
        hx, params, *settings = rest
        is_packed = isinstance(params, (list, tuple))
        if not is_packed or any(are_records(second)) or not bool((second == 1).all()):
            return scan(rec, input, second, *rest)
        with rec:
            steps = input.unsqueeze(1)
        result = scan(rec, steps, hx, params, *settings, False)
        if result is NotImplemented:
            return result
        with rec:
            return result[0].squeeze(1), *result[1:]

    return rule
