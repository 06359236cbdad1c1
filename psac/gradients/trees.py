"""Batches are trees of tensors: tuples, lists, mappings, dataclasses, and what torch knows.

Own classes are registered with torch (`torch.utils._pytree.register_pytree_node`).  Every tensor of
a batch has the records along its first axis.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from psac.gradients.errors import PrivacyError

LossFunction = Callable[..., Tensor]  # of a model, and the parts of a batch


class Node(NamedTuple):
    """A tree that is not a tensor, taken apart."""

    step: str  # from the tree to a part, when formatted with its name
    names: Iterable[Any]
    parts: Sequence[Any]
    build: Callable[[list[Any]], Any]  # a tree of other parts
    context: Any = None  # of a registered class: what it holds beside its parts


def opened(tree: Any) -> Node:
    """The one place that knows what a tree is made of."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        fields: Any = tree
        return Node(".{}", fields._fields, tree, lambda parts: type(fields)(*parts))
    if isinstance(tree, (list, tuple)):
        return Node("[{}]", range(len(tree)), tree, type(tree))
    if type(tree) is not dict and type(tree) in pytree.SUPPORTED_NODES:
        node = pytree.SUPPORTED_NODES[type(tree)]
        parts, context = node.flatten_fn(tree)
        names: Any = tree if isinstance(tree, Mapping) else ()
        names = list(names) if len(names) == len(parts) else range(len(parts))
        return Node("[{!r}]", names, parts, lambda p: node.unflatten_fn(p, context), context)
    if isinstance(tree, Mapping):
        keys = list(tree)
        return Node(
            "[{!r}]",
            keys,
            [tree[key] for key in keys],
            lambda parts: like_mapping(tree, dict(zip(keys, parts, strict=True))),
        )
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [f.name for f in dataclasses.fields(tree) if f.init]
        return Node(
            ".{}",
            fields,
            [getattr(tree, name) for name in fields],
            lambda parts: dataclasses.replace(tree, **dict(zip(fields, parts, strict=True))),
        )
    if tree is None:
        return Node("", (), (), lambda _: None)
    raise PrivacyError(
        f"a batch contains a {type(tree).__name__}. Batches must consist of tensors with one row "
        "per record. Turn it into a tensor in the data set or in collate_fn, or leave it out of "
        "the batch if it is the same for all records. Register a class of your own that holds "
        "tensors with torch.utils._pytree.register_pytree_node."
    )


def map_tensors(tree: Any, function: Callable[[Tensor], Any]) -> Any:
    """A copy of the tree with `function` applied to each tensor."""
    if isinstance(tree, Tensor):
        return function(tree)
    node = opened(tree)
    return node.build([map_tensors(part, function) for part in node.parts])


def walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any, Node | None]]:
    """The tree and all that is in it, by path; tensors in the order of `map_tensors`."""
    if isinstance(tree, Tensor):
        yield path, tree, None
        return
    node = opened(tree)
    yield path, tree, node
    for name, part in zip(node.names, node.parts, strict=True):
        yield from walk(part, path + node.step.format(name))


def arrangement(tree: Any) -> dict[str, tuple]:
    """What a tree is beside the values in it, by path: classes, names in their order, contexts.

    Two trees of one arrangement differ in sizes, in memory and in values alone.
    """
    found = {}
    for path, part, node in walk(tree):
        if node is None:
            flags = part.requires_grad, part.is_conj(), part.is_neg(), part.device.type
            found[path] = type(part), f"{part.dtype} with {part.dim()} axes", flags
        else:
            found[path] = type(part), list(node.names), node.context
    return found


def differs(first: dict[str, tuple], second: dict[str, tuple]) -> str | None:
    """Where two arrangements are not the same, and how; says no value of a record."""
    for path in sorted(first.keys() ^ second.keys()):
        return f"{path} is there for some batches and not for others"
    for path, one in first.items():
        other = second[path]
        place = path or "the batch"
        if one[0] is not other[0]:
            return f"{place} is {one[0].__name__} at one time and {other[0].__name__} at another"
        if one[1] != other[1]:
            if isinstance(one[1], str):
                return f"{place} is {one[1]} at one time and {other[1]} at another"
            return f"{place} has its parts under other names, or in another order"
        try:
            is_same = bool(one[2] == other[2])
        except (RuntimeError, ValueError):  # of tensors or arrays
            is_same = False
        if not is_same:
            return f"{place} ({one[0].__name__}) holds something else beside its parts"
    return None


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
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for part in opened(tree).parts for leaf in leaves(part)]


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


def of_plain_tensors(tree: Any) -> Any:
    """The batch without the user's own classes of tensors, whose code would see all records."""
    if all(type(leaf) is Tensor for leaf in leaves(tree)):
        return tree
    return map_tensors(tree, plain_tensor)


def plain_tensor(tensor: Tensor) -> Tensor:
    """The same memory, as a tensor of torch's own class."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)  # type: ignore[arg-type]


def own_copy(leaf: Tensor) -> Tensor:
    """A record in memory of its own: the function may write to it."""
    return leaf.detach().clone()


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
        first = next(iter(signature.parameters), "")
        if first in names:
            how += f". The model goes to '{first}': rename that argument, or the key of the batch"
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
