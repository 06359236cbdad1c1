"""Gradients that the function takes itself: forces, gradient penalties, adversarial steps.

Autograd knows all records at once, and each depends on itself alone.  So the gradient of all
outputs with respect to all inputs is the gradient of each record's own.

A gradient that is differentiated once more (`create_graph=True`) depends on parameters by its own
backward, which rules do not see.  The recorder then gives every record a copy of each parameter,
and autograd follows those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]

from psac.gradients.errors import NotVectorized
from psac.gradients.rules.physical import are_records, physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder


class NeedsCopies(Exception):
    """Internal: the function must run again, with a copy of each parameter for each record."""


def grad(
    rec: Recorder,
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """torch.autograd.grad, of tensors of records."""
    ends, starts = listed(outputs), listed(inputs)
    weights = [None] * len(ends) if grad_outputs is None else listed(grad_outputs)
    if not rec.serves(*ends, *starts, *weights) or not any(are_records(*ends)):
        return NotImplemented
    if is_grads_batched:
        raise NotVectorized("autograd.grad with is_grads_batched=True is not done under vmap")
    has_parameters = not all(are_records(*starts))
    if (create_graph or has_parameters) and not rec.only_copies:
        rec.stop(NeedsCopies())
    starts = [rec.copies(t, "grad") if are_records(t) == [False] else t for t in starts]
    ends = [rec.for_each(t, "grad") for t in ends]
    if any(w is None and end.numel() != 1 for w, end in zip(weights, ends, strict=True)):
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    weights = [None if w is None else rec.for_each(w, "grad") for w in weights]
    with physically():
        tops = [rec.physical(end) for end in ends]
        given = [
            torch.ones_like(top) if weight is None else rec.physical(weight).expand_as(top)
            for top, weight in zip(tops, weights, strict=True)
        ]
        grads = torch.autograd.grad(
            tops,
            [_functorch.get_unwrapped(start) for start in starts],
            given,
            retain_graph,
            create_graph,
            allow_unused=allow_unused,
            materialize_grads=materialize_grads,
        )
    return tuple(
        None if g is None else wrapped_like(rec, g, start)  # pyright: ignore[reportUnnecessaryComparison]
        for g, start in zip(grads, starts, strict=True)
    )


def exchange(tensor: Tensor, other: Tensor) -> None:
    """The Python object `tensor` stands for what `other` was."""
    torch._C._swap_tensor_impl(tensor, other)  # type: ignore[attr-defined]


def listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def wrapped_like(rec: Recorder, value: Tensor, tensor: Tensor) -> Tensor:
    """With records on the axis where those of `tensor` are."""
    return rec.of_records(value.movedim(_functorch.maybe_get_bdim(tensor), 0))


def requires_grad_(rec: Recorder, tensor: Tensor, requires_grad: bool = True) -> Any:
    """A constant that was made in the call is given to each record first."""
    if not rec.serves(tensor):
        return NotImplemented
    is_constant = are_records(tensor) == [False]
    if not requires_grad:
        is_wanted = (tensor if is_constant else _functorch.get_unwrapped(tensor)).requires_grad
        return NotImplemented if is_wanted else tensor
    if is_constant:
        if tensor.requires_grad:
            return tensor
        if not rec.gives_to_records(tensor):
            return NotImplemented
    value = _functorch.get_unwrapped(tensor)
    if not value.requires_grad:
        with physically(), torch.enable_grad():
            value = rec.started(value)
        exchange(tensor, wrapped_like(rec, value, tensor))
    return tensor


def set_requires_grad(rec: Recorder, tensor: Tensor, requires_grad: bool) -> Any:
    """`x.requires_grad = True`"""
    result = requires_grad_(rec, tensor, requires_grad)
    return result if result is NotImplemented else None


def get_requires_grad(rec: Recorder, tensor: Tensor, *_: Any) -> Any:
    """vmap itself always says no."""
    if are_records(tensor) == [False] or not rec.serves(tensor):
        return NotImplemented
    return _functorch.get_unwrapped(tensor).requires_grad


def data(rec: Recorder, tensor: Tensor, *_: Any) -> Any:
    """`x.data`: the same memory, of which autograd knows nothing."""
    if are_records(tensor) == [False] or not rec.serves(tensor):
        return NotImplemented
    with physically():
        value = _functorch.get_unwrapped(tensor).data
    return wrapped_like(rec, value, tensor)
