"""A record's part of a batch, compared with the same record collated alone.

Leaves are the tensors of a batch, by name: `['input_ids']`, `[0]`, `.labels`; a batch that is one
tensor has the leaf `batch`.  A part is one record's slice of a leaf, with its first axis kept.
Equality is bit for bit, but NaN equals NaN.  All functions are pure.

>>> part, alone = torch.tensor([[5, 6, 0, 0]]), torch.tensor([[5, 6]])
>>> difference({"[0]": part}, {"[0]": alone}), padded({"[0]": part}, {"[0]": alone})
(None, True)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from psac.gradients.errors import PrivacyError
from psac.gradients.trees import num_records, walk

Leaves = dict[str, Tensor]
Finding = tuple[str, str]  # a leaf, and what is wrong with it


def named_leaves(batch: Any) -> Leaves:
    """The tensors of a batch by name, in the order of `psac.gradients.trees.leaves`."""
    found = [(path or "batch", leaf) for path, leaf, node in walk(batch) if node is None]
    leaves = dict(found)
    if not leaves:
        num_records(batch)  # raises
    if len(leaves) < len(found):
        raise PrivacyError("a batch has two keys that print alike: give its parts other names.")
    return leaves


def same(one: Tensor, other: Tensor) -> bool:
    """Whether dtype, shape and bits agree."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(_bits(one), _bits(other))
    )


def _bits(leaf: Tensor) -> Tensor:
    values = torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf
    if values.is_floating_point():
        values = torch.where(values.isnan(), torch.full_like(values, torch.nan), values)
    return values.reshape(-1).contiguous().view(torch.uint8)


def constant(values: Tensor) -> bool:
    """Whether all entries of a vector are the same."""
    return same(values, values[:1].expand(len(values)))


def behind(part: Tensor, alone: Tensor) -> Tensor:
    """What follows the record, as a vector, except the entry right behind it.

    Labels that are shifted by one to be decoder inputs reach that entry.
    """
    outside = torch.ones(part.shape, dtype=torch.bool)
    sizes = zip(part.shape, alone.shape, strict=True)
    outside[tuple(slice(own + (size > own)) for size, own in sizes)] = False
    return part[outside]


def padded(parts: Leaves, alone: Leaves) -> bool:
    """Whether the record is longer in the batch than alone: its length comes from the batch."""
    return any(
        size > own
        for name, part in parts.items()
        for size, own in zip(part.shape, alone[name].shape, strict=True)
    )


def unlike(parts: Leaves, alone: Leaves) -> Finding | None:
    """A leaf that another list of records turns into something of another kind."""
    for name in parts.keys() ^ alone.keys():
        return name, "is there for some lists of records and not for others"
    for name, part in parts.items():
        own = alone[name]
        if (part.dtype, part.dim()) != (own.dtype, own.dim()):
            return name, (
                f"is {part.dtype} with {part.dim()} axes in the batch, and {own.dtype} with "
                f"{own.dim()} alone"
            )
    return None


def difference(parts: Leaves, alone: Leaves) -> Finding | None:
    """A leaf in which the record differs from itself alone; padding is not compared."""
    if finding := unlike(parts, alone):
        return finding
    for name, part in parts.items():
        own = alone[name]
        if any(size < least for size, least in zip(part.shape, own.shape, strict=True)):
            return name, "is shorter in the batch than alone: records are cut by one another"
        sizes = list(zip(part.shape, own.shape, strict=True))
        if same(part[tuple(slice(least) for _, least in sizes)], own):
            continue
        if same(part[tuple(slice(size - least, size) for size, least in sizes)], own):
            return name, "is padded in front, not behind (a tokenizer needs padding_side='right')"
        return name, "differs from the same record collated alone"
    return None


class Draws:
    """A record's part of a leaf in several draws of random numbers.

    Of an axis longer than 64 entries, every second, third, ... entry is kept, counted by `shape`.
    """

    def __init__(self, shape: torch.Size) -> None:
        self._kept = tuple(slice(None, None, 1 + size // 64) for size in shape)
        self.shapes: list[torch.Size] = []
        self.values: list[Tensor] = []

    def add(self, part: Tensor) -> None:
        """One more draw."""
        self.shapes.append(part.shape)
        self.values.append(_ordered(part[self._kept]))

    def distance(self, alone: Draws) -> int:
        """The largest difference over entries and thresholds: how many more draws lie below it.

        This is the Kolmogorov-Smirnov statistic times the number of draws.  Entries that some draw
        is too short for do not count, but a record that is always shorter than alone is all apart.
        """
        num_draws, values = len(self.values), _cropped(*self.values, *alone.values)
        sizes, own_sizes = torch.tensor(self.shapes), torch.tensor(alone.shapes)
        if (sizes.amax(0) < own_sizes.amin(0)).any():
            return num_draws
        ordered, order = torch.stack(values).flatten(1).sort(0)
        excess = torch.where(order < num_draws, 1, -1).cumsum(0).abs()
        excess[:-1].masked_fill_(ordered[:-1] == ordered[1:], 0)  # only between different values
        return int(excess.max()) if excess.numel() else 0


def _ordered(leaf: Tensor) -> Tensor:
    """In a dtype that compares, with NaN a number like others."""
    if leaf.is_complex():
        leaf = torch.view_as_real(leaf.resolve_conj())
    if leaf.is_floating_point():
        return leaf.double().nan_to_num(nan=1e300, posinf=torch.inf, neginf=-torch.inf)
    return leaf.long()


def _cropped(*leaves: Tensor) -> list[Tensor]:
    """To the shape that all have."""
    sizes = [min(size) for size in zip(*(leaf.shape for leaf in leaves), strict=True)]
    return [leaf[tuple(map(slice, sizes))] for leaf in leaves]
