"""Autograd functions in the old style, whose `forward(ctx, ...)` saves what `backward` needs.

vmap runs only functions with a `setup_context`.  So under vmap, each call of an old one runs a twin
that has one: the function's own forward and backward see one record, as the rest of the code does.
What forward has saved becomes further outputs of the twin.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import _is_setup_context_defined
from torch.utils import _pytree as pytree

from psac.gradients.errors import NotVectorized
from psac.gradients.rules.physical import physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder


class Context:
    """The `ctx` of an old function: it takes attributes, and what is saved."""

    def __init__(self, operands: tuple) -> None:
        self.saved_tensors: tuple = ()
        self.needs_input_grad = tuple(
            isinstance(t, Tensor) and t.is_floating_point() for t in operands
        )

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    @property
    def saved_variables(self) -> tuple:
        return self.saved_tensors

    def mark_dirty(self, *_: Tensor) -> None:
        raise NotVectorized("an autograd.Function without setup_context writes in place")

    def mark_non_differentiable(self, *_: Tensor) -> None:
        """Gradients for these are passed to backward all the same: zeros."""

    def set_materialize_grads(self, value: bool) -> None:
        """Gradients are always tensors."""


class Twin:
    """One call of an old function, in the form that vmap runs."""

    def __init__(self, function: type[Function]) -> None:
        self.function = function
        self.context: Context | None = None
        self.is_single = True
        self.num_outputs = 0
        self.kept: list[Any] = []  # what forward has saved, tensors replaced by their places
        self.spec: Any = None

    def forward(self, *operands: Any) -> tuple:
        context = Context(operands)
        outputs = self.function.forward(context, *operands)
        self.is_single = not isinstance(outputs, tuple)
        outputs = (outputs,) if self.is_single else outputs
        self.num_outputs, further = len(outputs), []
        self.kept, self.spec = pytree.tree_flatten(vars(context))
        for k, value in enumerate(self.kept):
            if isinstance(value, Tensor):
                self.kept[k] = place_of(value, operands, outputs, further)
        self.context = context
        vars(context).clear()
        return *outputs, *further

    def setup_context(self, ctx: Any, inputs: tuple, output: tuple) -> None:
        places = [k for k in self.kept if isinstance(k, Place)]
        ctx.save_for_backward(*((inputs if p.is_input else output)[p.number] for p in places))

    def backward(self, ctx: Any, *grads: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        kept = [next(saved) if isinstance(value, Place) else value for value in self.kept]
        context: Any = copy.copy(self.context)
        vars(context).update(pytree.tree_unflatten(kept, self.spec))
        context.needs_input_grad = ctx.needs_input_grad
        return self.function.backward(context, *grads[: self.num_outputs])


class Place:
    """Where a saved tensor is found: among the inputs, or the outputs of the twin."""

    def __init__(self, is_input: bool, number: int) -> None:
        self.is_input, self.number = is_input, number


def place_of(value: Tensor, operands: tuple, outputs: tuple, further: list[Tensor]) -> Place:
    for is_input, values in ((True, operands), (False, outputs)):
        for k, candidate in enumerate(values):
            if candidate is value:
                return Place(is_input, k)
    further.append(value)
    return Place(False, len(outputs) + len(further) - 1)


def call(function: type[Function], *operands: Any) -> Any:
    if function.vmap is not Function.vmap:
        raise NotVectorized(
            f"{function.__name__} is an autograd.Function with a vmap rule of its own, which sees "
            "all records at once"
        )
    twin = Twin(function)
    parts = {name: staticmethod(getattr(twin, name)) for name in ("forward", "setup_context")}
    parts |= {"backward": staticmethod(twin.backward), "generate_vmap_rule": True}
    result = type(function.__name__, (Function,), parts).apply(*operands)
    return result[0] if twin.is_single else result[: twin.num_outputs]


def record_by_record(rec: Recorder, function: type[Function], operands: tuple) -> Any:
    """For the self-check, where functions that draw numbers must draw the same for each record."""
    rows = [rec.for_each(t, "function") if isinstance(t, Tensor) else t for t in operands]
    with physically():
        rows = [rec.physical(t) if isinstance(t, Tensor) else t for t in rows]
        results, before = [], torch.default_generator.get_state()
        for k in range(rec.num_samples):
            torch.default_generator.set_state(before)
            results.append(function.apply(*(t[k] if isinstance(t, Tensor) else t for t in rows)))
        if isinstance(results[0], tuple):
            return tuple(rec.of_records(torch.stack(r)) for r in zip(*results, strict=True))
        return rec.of_records(torch.stack(results))


def only_tensors(values: tuple) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


@contextlib.contextmanager
def with_old_functions(rec: Recorder, called: set[Any]) -> Iterator[None]:
    """In here, autograd functions of the old style run under vmap; `called` gets them."""
    usual = vars(Function)["apply"]
    apply: Callable[..., Any] = usual.__func__

    def either(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if _is_setup_context_defined(cls.setup_context):
            return apply(cls, *args, **kwargs)
        if not torch._C._are_functorch_transforms_active():
            return apply(cls, *args, **kwargs)
        called.add(cls)
        caught = rec.watch.caught
        try:
            return call(cls, *args)
        except RuntimeError as error:
            if "same randomness" not in str(error) or not rec.serves(*only_tensors(args)):
                raise
            rec.watch.caught = caught
            return record_by_record(rec, cls, args)

    try:
        Function.apply = classmethod(either)  # type: ignore[method-assign]
        yield
    finally:
        Function.apply = usual  # type: ignore[method-assign]
