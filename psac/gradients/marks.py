"""Numbers that the user reads from tensors on a tape, and that remember it.

`losses.mean().item()` is a number to look at, or a part of the loss, and then
`losses / losses.mean().item()` mixes samples as `losses / losses.mean()` does.  On a batch whose
loss is proved, `item()` therefore returns a float or int of a subclass with a *shadow*, the tensor
it was read from.  Arithmetic is done on the shadow as well, and where such a number comes back into
a torch function, the tape has its shadow.

Not seen: what leaves by `float(t)`, `t.tolist()`, `t.numpy()` or `if t > 3`; Python allows no
subclass there, and most loops that look at their loss mean no more than that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor


class Marked:
    """A number with the watched tensor that it was read from."""

    shadow: Any

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        from .tape import Watched

        return Watched.__torch_function__(function, types, args, kwargs)

    def __reduce__(self) -> tuple:
        return bare, (bare(self),)


class MarkedFloat(Marked, float): ...


class MarkedInt(Marked, int): ...


def mark(value: Any, shadow: Any) -> Any:
    """The number with its shadow; what is no number stays as it is."""
    if isinstance(value, bool) or not isinstance(value, (float, int)):
        return value
    marked = MarkedFloat(value) if isinstance(value, float) else MarkedInt(value)
    marked.shadow = shadow
    return marked


def bare(value: Any) -> Any:
    """The number without its shadow."""
    if not isinstance(value, Marked):
        return value
    return float(value) if isinstance(value, float) else int(value)  # type: ignore[call-overload]


def shadow_of(value: Any) -> Any:
    return value.shadow if isinstance(value, Marked) else value


def _binary(operation: Callable, reflected: bool) -> Callable:
    def apply(self: Any, other: Any) -> Any:
        if isinstance(other, Tensor):
            return NotImplemented  # torch asks for our __torch_function__ next
        if not isinstance(other, (float, int)):
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        value = operation(*map(bare, pair))
        if not any(is_current(number) for number in pair):
            return value
        return mark(value, operation(*map(shadow_of, pair)))

    return apply


def _unary(operation: Callable) -> Callable:
    def apply(self: Any) -> Any:
        value = operation(bare(self))
        return mark(value, operation(self.shadow)) if is_current(self) else value

    return apply


def is_current(value: Any) -> bool:
    """Whether the number is from a batch whose tape still runs, or fades."""
    return isinstance(value, Marked) and any(
        tape.loss is None or tape.fading for tape in value.shadow.tapes
    )


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _class in (MarkedFloat, MarkedInt):
    for _name in BINARY:
        _operation = getattr(operator, _name)
        setattr(_class, f"__{_name}__", _binary(_operation, reflected=False))
        setattr(_class, f"__r{_name}__", _binary(_operation, reflected=True))
    for _name in ("neg", "pos", "abs"):
        setattr(_class, f"__{_name}__", _unary(getattr(operator, _name)))
