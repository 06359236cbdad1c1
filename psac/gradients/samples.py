"""Trees of tensors and the samples in them.

Trees are tuples, lists, mappings, dataclasses, packed sequences.

`Batch` finds which dimension of each tensor holds the samples and takes some of them out, so that a
forward can be repeated for a few samples alone. A dimension is a sample dimension because it has as
many entries as there are samples; where that leaves a choice (a [T, T] mask with T samples), every
reading is offered, and the engine's proof decides.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Axis = int | None
_READINGS = 12  # ambiguous trees are rare; more readings than this are not tried


def map_tensors(tree: Any, function: Callable[[Any], Any]) -> Any:
    """A copy of the tree with `function` applied to each tensor and packed sequence.

    Other leaves are kept.
    """
    if isinstance(tree, (Tensor, PackedSequence)):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(value, function) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(value, function) for value in tree)
    if isinstance(tree, Mapping):
        mapped = {key: map_tensors(value, function) for key, value in tree.items()}
        return rebuilt_mapping(tree, mapped)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        changes = {
            f.name: map_tensors(getattr(tree, f.name), function)
            for f in dataclasses.fields(tree)
            if f.init
        }
        return dataclasses.replace(tree, **changes)
    return tree


def rebuilt_mapping(tree: Mapping, mapped: dict) -> Any:
    if type(tree) is dict:
        return mapped
    try:
        return type(tree)(**mapped) if dataclasses.is_dataclass(tree) else type(tree)(mapped)  # type: ignore[call-arg]
    except TypeError:
        return mapped


def leaves(tree: Any) -> list[Any]:
    """Tensors and packed sequences, in the order of `map_tensors`."""
    found: list[Any] = []
    map_tensors(tree, lambda leaf: found.append(leaf) or leaf)
    return found


def tensors(tree: Any) -> list[Tensor]:
    return [leaf.data if isinstance(leaf, PackedSequence) else leaf for leaf in leaves(tree)]


def axes_of(leaf: Tensor | PackedSequence, num_samples: int) -> list[Axis]:
    """The dimensions that may hold the samples, likeliest first; [None] if none can."""
    if isinstance(leaf, PackedSequence):
        return [0] if int(leaf.batch_sizes[0]) == num_samples else [None]
    fitting: list[Axis] = [d for d in range(leaf.dim()) if leaf.shape[d] == num_samples]
    likely: list[Axis] = [d for d in fitting if d in (0, 1)]
    if len(fitting) > 1 and leaf.dim() == 2:
        return [*fitting, None]
    return likely or fitting or [None]


@dataclasses.dataclass(frozen=True)
class Batch:
    """A tree that holds `num_samples` samples; `axes` says where, leaf by leaf."""

    tree: Any
    num_samples: int
    axes: tuple[Axis, ...]

    @classmethod
    def readings(cls, tree: Any, num_samples: int) -> Iterator[Batch]:
        """Every way to find the samples in the tree, likeliest first."""
        choices = [axes_of(leaf, num_samples) for leaf in leaves(tree)]
        for axes in itertools.islice(itertools.product(*choices), _READINGS):
            yield cls(tree, num_samples, axes)

    def take(self, samples: Sequence[int]) -> Any:
        """The same tree for these samples alone, in this order; a sample may come twice."""
        axes = iter(self.axes)
        return map_tensors(self.tree, lambda leaf: taken(leaf, next(axes), samples))


def taken(leaf: Any, axis: Axis, samples: Sequence[int]) -> Any:
    if axis is None:
        return leaf
    if isinstance(leaf, PackedSequence):
        padded, lengths = pad_packed_sequence(leaf, batch_first=True)
        index = torch.tensor(samples)
        chosen = padded[index.to(padded.device)], lengths[index]
        return pack_padded_sequence(*chosen, batch_first=True, enforce_sorted=False)
    index = torch.tensor(samples, device=leaf.device)
    chosen = leaf.detach().index_select(axis, index)
    if not leaf.requires_grad:
        return chosen
    with torch.enable_grad():  # the same place in the graph as the original has
        return chosen.requires_grad_() if leaf.is_leaf else chosen.requires_grad_().view_as(chosen)


def count(tree: Any) -> int | None:
    """The number of samples as the first entry of the first tensor that has dimensions."""
    for leaf in leaves(tree):
        if isinstance(leaf, PackedSequence):
            return int(leaf.batch_sizes[0])
        if leaf.dim():
            return leaf.shape[0]
    return None
