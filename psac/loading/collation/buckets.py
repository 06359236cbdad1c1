"""Batches of one public length: a record's padded shape is a function of the record alone.

A `collate_fn` that pads to the longest record of a batch gives each record a length that comes from
the others.  `ByLength` pads each record to the smallest public length that holds it, and makes one
batch of the records of each length.

>>> import torch
>>> from torch.nn.utils.rnn import pad_sequence
>>> def collate(rows):
...     return pad_sequence(rows, batch_first=True, padding_value=-1)
>>> rows = [torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([5, 6])]
>>> for batch in ByLength(collate, (2, 4))(rows):
...     print(batch.tolist())
[[4, -1], [5, 6]]
[[1, 2, 3, -1]]
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psac.gradients.errors import PrivacyError
from psac.gradients.trees import rebuilt
from psac.loading.collation.check import Check
from psac.loading.collation.generators import generators_of, restore, saved
from psac.loading.collation.parts import Leaves, behind, constant, unlike

Collate = Callable[[list[Any]], Any]
# What a collate_fn raises for a record that it cannot stack with another.
UNFIT = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)


class ByLength:
    """Makes batches of the records of each length, each padded to exactly that length.

    A record's length is its largest size, collated alone, along the axes that vary (such as axis 1
    of `input_ids`); it goes to the batch of the smallest of `lengths` that holds it.  Each record
    is collated alone and then padded, so its part of a batch, shape and values, depends on no other
    record.  Every sample is in one batch, once; batches come by length, and samples within them in
    their original order.  Samples are not changed.

    Which axes vary, and the constant that pads a leaf, is learned from `collate_fn` once: it gets
    the first record together with longer and shorter copies of it, in which tensors, arrays,
    strings and lists of numbers are repeated or cut.  What this does not show is learned from the
    first list, if its records differ in it.  An axis that varies only in a later list raises
    `PrivacyError`, for records went out unpadded.  The object keeps what it has learned, and can be
    pickled; learning leaves the random generators as they were.

    A record longer than all `lengths` and a leaf that `collate_fn` does not pad raise `ValueError`;
    a leaf that it does not pad by one constant raises `PrivacyError`.  Decoder inputs, which are
    labels shifted by one, are padded right behind the record as well.
    """

    def __init__(self, collate_fn: Collate, lengths: Sequence[int]) -> None:
        self.collate_fn = collate_fn
        self.lengths = tuple(sorted(set(lengths)))
        if not self.lengths or not all(type(n) is int and n > 0 for n in self.lengths):
            raise ValueError(
                f"lengths is {lengths!r}: give positive whole numbers that do not depend on the "
                "private data, such as (32, 64, 128)."
            )
        self._asked = False
        self._axes: dict[str, set[int]] = {}  # those that vary, by leaf
        self._padding: dict[str, Tensor] = {}
        self._arrangement: dict[str, tuple] = {}  # what surrounds the leaves
        self._fixed: dict[tuple[str, int], int] = {}  # sizes along the other axes

    def __call__(self, samples: Sequence[Any]) -> list[Any]:
        trees = [self.collate_fn([copy.deepcopy(sample)]) for sample in samples]
        records = [self._leaves(tree, 1) for tree in trees]
        self._learn(samples, records)
        groups: dict[int, list[int]] = {length: [] for length in self.lengths}
        for number, leaves in enumerate(records):
            groups[self._length(number, leaves)].append(number)
        return [
            rebuilt(trees[numbers[0]], self._joined([records[k] for k in numbers], length))
            for length, numbers in groups.items()
            if numbers
        ]

    def _leaves(self, batch: Any, num_samples: int) -> Leaves:
        return Check(self.collate_fn, [], {}, self._arrangement).leaves(batch, num_samples)

    def _length(self, number: int, leaves: Leaves) -> int:
        sizes = [leaves[name].shape[axis] for name, axes in self._axes.items() for axis in axes]
        own = max(sizes, default=0)
        for length in self.lengths:
            if own <= length:
                return length
        raise ValueError(
            f"record {number} of the list has length {own}, and lengths is {self.lengths}: at most "
            f"{self.lengths[-1]} is allowed. Cut records to it in the data set, or add a larger "
            "length."
        )

    def _joined(self, records: list[Leaves], length: int) -> list[Tensor]:
        return [
            torch.cat([self._padded(name, leaves[name], length) for leaves in records])
            for name in records[0]
        ]

    def _padded(self, name: str, leaf: Tensor, length: int) -> Tensor:
        if name not in self._axes:
            return leaf
        shape = [length if k in self._axes[name] else size for k, size in enumerate(leaf.shape)]
        longer = self._padding[name].expand(shape).clone()
        longer[tuple(map(slice, leaf.shape))] = leaf
        return longer

    # What is learned
    def _learn(self, samples: Sequence[Any], records: list[Leaves]) -> None:
        for leaves in records:
            if finding := unlike(leaves, records[0]):
                raise PrivacyError(f"records are collated into different leaves: {finding[0]}.")
        if samples and not self._asked:
            generators = generators_of(self.collate_fn)
            states = saved(generators)
            try:
                self._ask_with_copies(samples[0])
                self._ask_with_others(samples, records)
            finally:
                restore(generators, states)
            self._asked = True
        for (name, axis), size in self._fixed.items():
            if any(leaves[name].shape[axis] != size for leaves in records):
                raise PrivacyError(
                    f"{name} varies along axis {axis}, but records went out with its size {size} "
                    "alone, unpadded. Pad it in the data set, or let the first list have records "
                    "that differ in it."
                )

    def _ask_with_copies(self, sample: Any) -> None:
        """Sequences of one length may belong together (ids and their mask), or not."""
        for positions in _positions_by_length(sample):
            if not self._try(sample, positions):
                for position in positions:
                    self._try(sample, {position})

    def _try(self, sample: Any, positions: set[int]) -> bool:
        """Whether copies that are longer or shorter there can be collated with the sample."""
        longer, shorter = (_resized(sample, positions, resize) for resize in (_repeated, _cut))
        return any([self._ask(sample, longer), self._ask(shorter, sample)])

    def _ask_with_others(self, samples: Sequence[Any], records: list[Leaves]) -> None:
        for name, leaf in records[0].items():
            for axis in range(1, leaf.dim()):
                sizes = [leaves[name].shape[axis] for leaves in records]
                short, long = sizes.index(min(sizes)), sizes.index(max(sizes))
                if axis in self._axes.get(name, ()):
                    continue
                if sizes[short] == sizes[long]:
                    self._fixed[name, axis] = sizes[0]
                    continue
                self._ask(samples[short], samples[long])
                if axis not in self._axes.get(name, ()):
                    raise ValueError(
                        f"{name} varies along axis {axis}, and the collate_fn does not pad it. "
                        "Give a collate_fn that pads, or pad in the data set."
                    )

    def _ask(self, short: Any, long: Any) -> bool:
        """Learns from a record together with a longer one; whether they could be collated."""
        try:
            alone = self._leaves(self.collate_fn([copy.deepcopy(short)]), 1)
            pair = self._leaves(self.collate_fn([copy.deepcopy(short), copy.deepcopy(long)]), 2)
        except PrivacyError:
            raise
        except UNFIT:
            return False
        self._take(alone, pair)
        return True

    def _take(self, alone: Leaves, pair: Leaves) -> None:
        """Learns the axes that grew, and what was put behind the record."""
        for name, own in alone.items():
            part = pair[name][:1]
            axes = {k for k in range(1, own.dim()) if part.shape[k] > own.shape[k]}
            if not axes:
                continue
            values = behind(part, own)
            values = values if len(values) else part.flatten()[-1:]
            values = torch.cat([self._padding.get(name, values[:1]), values])
            if not constant(values):
                raise PrivacyError(
                    f"the collate_fn does not pad {name} by one constant, so that it cannot be "
                    "brought to a public length. Compute it in the model or in the loss function."
                )
            self._axes[name] = self._axes.get(name, set()) | axes
            self._padding[name] = values[:1].clone()


def _positions_by_length(sample: Any) -> list[set[int]]:
    """The sequences of a sample by their numbers, those of one length together."""
    lengths: list[int] = []
    _map_sequences(sample, lambda sequence: lengths.append(len(sequence)))
    return [{k for k, n in enumerate(lengths) if n == length} for length in sorted(set(lengths))]


def _resized(sample: Any, positions: set[int], resize: Callable[[Any], Any]) -> Any:
    numbers = itertools.count()
    return _map_sequences(sample, lambda item: resize(item) if next(numbers) in positions else item)


def _repeated(sequence: Any) -> Any:
    """Three times, so that at least two places are padded."""
    if isinstance(sequence, Tensor):
        return torch.cat([sequence] * 3)
    if isinstance(sequence, np.ndarray):
        return np.concatenate([sequence] * 3)
    return " ".join([sequence] * 3) if isinstance(sequence, str) else sequence * 3


def _cut(sequence: Any) -> Any:
    return sequence[: len(sequence) // 3]


def _map_sequences(tree: Any, function: Callable[[Any], Any]) -> Any:
    """A copy of a sample with `function` applied to what can be made longer or shorter."""
    if isinstance(tree, (Tensor, np.ndarray)):
        return function(tree) if tree.ndim else tree
    if isinstance(tree, str):
        return function(tree)
    if isinstance(tree, (list, tuple)):
        if isinstance(tree, list) and all(isinstance(item, (int, float, str)) for item in tree):
            return function(tree)
        values = [_map_sequences(value, function) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    if isinstance(tree, Mapping):
        return {key: _map_sequences(value, function) for key, value in tree.items()}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree) if f.init}
        changes = {name: _map_sequences(value, function) for name, value in fields.items()}
        return dataclasses.replace(tree, **changes)
    return tree
