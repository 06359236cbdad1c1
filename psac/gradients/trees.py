"""Batches are trees of tensors: tuples, lists, mappings, dataclasses, and what torch knows.

Own classes are registered with torch (`torch.utils._pytree.register_pytree_node`).  Every tensor of
a batch has the records along its first axis.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from psac.gradients.errors import PrivacyError


def map_tensors(tree: Any, function: Callable[[Tensor], Any]) -> Any:
    """A copy of the tree with `function` applied to each tensor."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(value, function) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(value, function) for value in tree)
    if type(tree) is not dict and type(tree) in pytree.SUPPORTED_NODES:
        node = pytree.SUPPORTED_NODES[type(tree)]
        parts, context = node.flatten_fn(tree)
        return node.unflatten_fn([map_tensors(part, function) for part in parts], context)
    if isinstance(tree, Mapping):
        return like_mapping(tree, {k: map_tensors(v, function) for k, v in tree.items()})
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree) if f.init}
        changes = {name: map_tensors(value, function) for name, value in fields.items()}
        return dataclasses.replace(tree, **changes)
    if tree is None:
        return None
    raise PrivacyError(
        f"a batch contains a {type(tree).__name__}. Batches must consist of tensors with one row "
        "per record. Turn it into a tensor in the data set or in collate_fn, or leave it out of "
        "the batch if it is the same for all records. Register a class of your own that holds "
        "tensors with torch.utils._pytree.register_pytree_node."
    )


def like_mapping(tree: Mapping, content: dict) -> Any:
    """Of the same class, if it is made of its content alone: attributes may hold other records."""
    if type(tree) is dict:
        return content
    try:
        return type(tree)(content)  # type: ignore[call-arg]
    except TypeError:
        return content


def leaves(tree: Any) -> list[Tensor]:
    """The tensors, in the order of `map_tensors`."""
    found: list[Tensor] = []
    map_tensors(tree, lambda leaf: found.append(leaf) or leaf)
    return found


def num_records(tree: Any) -> int:
    """How many records the batch holds."""
    tensors = leaves(tree)
    if not tensors:
        raise PrivacyError("the batch holds no tensor, so there is no record in it.")
    refuse_layouts(tensors)
    sizes = sorted({t.shape[0] if t.dim() else -1 for t in tensors})
    if len(sizes) > 1 or sizes[0] < 0:
        shapes = ", ".join(str(list(t.shape)) for t in tensors[:6])
        raise PrivacyError(
            f"the tensors of a batch have the shapes {shapes}: each must have the records along "
            "its first axis, as many as the others. What is the same for all records belongs into "
            "the loss function, not into the batch."
        )
    return sizes[0]


def refuse_layouts(tensors: list[Tensor]) -> None:
    """Raises for tensors that are not plain arrays."""
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else "sparse"
            raise PrivacyError(
                f"a batch holds a {kind} tensor, of which vmap cannot take single records: give it "
                "as a dense one, by .to_dense() or padding in the data set or its collate_fn."
            )


def record(tree: Any, number: int) -> Any:
    """A batch of one record."""
    return map_tensors(tree, lambda leaf: leaf[number : number + 1])


def made_up(tree: Any) -> list[Any]:
    """Batches of one record that nobody has, of zeros and of ones."""
    return [
        map_tensors(tree, lambda leaf, v=value: torch.full_like(leaf[:1], v)) for value in (0, 1)
    ]


def records(tree: Any, numbers: Tensor) -> Any:
    """A batch of some of the records."""
    return map_tensors(tree, lambda leaf: leaf[numbers.to(leaf.device)])


def rebuilt(tree: Any, values: list[Any]) -> Any:
    """The tree with other leaves, in the order of `leaves`."""
    following = iter(values)
    return map_tensors(tree, lambda _: next(following))


def refuse_other_arguments(function: Callable, model: Any, tree: Any) -> None:
    """Raises if `function(model, ...)` does not take the parts of the batch."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a builtin
        return
    if isinstance(tree, Mapping):
        given, how = f"model, {', '.join(map(str, tree))}", "a mapping is passed by name"
        parts, names = (), dict(tree)
    else:
        parts, names = parts_of(tree), {}
        given = ", ".join(["model", *(f"{type(part).__name__}" for part in parts)])
        how = f"a batch of {len(parts)} parts is passed by position"
    try:
        signature.bind(model, *parts, **names)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"{name}{signature} cannot be called with ({given}): {error}. psac calls the loss "
            f"function with the model and the batch, and {how}."
        ) from None


def parts_of(tree: Any) -> tuple:
    is_named = hasattr(tree, "_fields")
    return tuple(tree) if isinstance(tree, (tuple, list)) and not is_named else (tree,)


def call(function: Callable, model: Any, tree: Any) -> Any:
    """`function(model, ...)` with the parts of a batch: tuples by position, mappings by name."""
    if isinstance(tree, Mapping):
        return function(model, **tree)
    return function(model, *parts_of(tree))
