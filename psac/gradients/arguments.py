"""The arguments of a torch call as trees, and the tensors of a batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor


class Ref(NamedTuple):
    """In the place of a tensor that is known to the tape by its number."""

    number: int


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """A copy of the arguments of a call with `function` applied to what is in them."""
    if isinstance(tree, Ref):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        values = (mapped(value, function) for value in tree)
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    if isinstance(tree, dict):
        return {key: mapped(value, function) for key, value in tree.items()}
    if isinstance(tree, slice):
        return slice(*(mapped(v, function) for v in (tree.start, tree.stop, tree.step)))
    return function(tree)


def flat(tree: Any) -> list[Any]:
    """What is in the arguments of a call."""
    found: list[Any] = []
    mapped(tree, lambda leaf: found.append(leaf) or leaf)
    return found


def is_ref(leaf: Any) -> bool:
    return isinstance(leaf, Ref)


def exchanged(tree: Any, numbers: Mapping[int, int]) -> Any:
    """The tree with some of its numbers exchanged: a batch size that is written in."""
    if isinstance(tree, (tuple, list)):
        return type(tree)(exchanged(value, numbers) for value in tree)
    if isinstance(tree, (int, float)) and not isinstance(tree, bool):
        whole = math.isfinite(tree) and tree == int(tree)
        return numbers.get(int(tree), tree) if whole else tree
    return tree


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in whatever the user's collate_fn made."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from tensors_in(value)
    elif isinstance(batch, Mapping):
        yield from tensors_in(list(batch.values()))
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        yield from tensors_in([getattr(batch, f.name) for f in dataclasses.fields(batch)])
