"""Where the samples are in a tensor.

A batch of n samples lives in one dimension of a tensor, alone or merged with positions:

    [n, ...]            the plain batch dimension, wherever it stands (batch first, batch second)
    [n * p, ...]        positions inside the sample (a flattened [n, p]): `inner` is None
    [p * n, ...]        positions outside the sample (a flattened [p, n]): `inner` is 1
    [a * n * c, ...]    both: `inner` is c

`Layout.samples_first` brings any of them to [n, p, rest...]; the order of the positions is the same
for tensors of the same layout, so that inputs and output gradients stay aligned.

>>> import torch
>>> # two positions of two samples, positions outside
>>> rows = torch.tensor([[0.0], [1.0], [0.1], [1.1]])
>>> Layout(dim=0, inner=1).samples_first(rows, 2)[:, :, 0]
tensor([[0.0000, 0.1000],
        [1.0000, 1.1000]])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """One dimension of a tensor holds a * n * c entries.

    a from outside and c = `inner` from inside the sample.
    """

    dim: int
    inner: int | None = None

    def samples_first(self, tensor: Tensor, num_samples: int) -> Tensor:
        """[n, p, rest...] with p = a * c; a view where strides allow."""
        if self.dim == 0 and tensor.shape[0] == num_samples:
            return tensor.unsqueeze(1)
        moved = tensor.movedim(self.dim, 0) if self.dim else tensor
        size, *rest = moved.shape
        outer, inner = self.factors(size, num_samples)
        if outer == 1:
            return moved.view(num_samples, inner, *rest)
        split = moved.view(outer, num_samples, inner, *rest)
        if inner == 1:
            return split.select(2, 0).transpose(0, 1)
        return split.transpose(0, 1).flatten(1, 2)

    def rows_of(self, size: int, num_samples: int, sample: int) -> list[int]:
        """The indices along `dim` that belong to one sample."""
        outer, inner = self.factors(size, num_samples)
        return [(o * num_samples + sample) * inner + i for o in range(outer) for i in range(inner)]

    def factors(self, size: int, num_samples: int) -> tuple[int, int]:
        """(a, c) with a * n * c = size."""
        positions = size // num_samples
        inner = positions if self.inner is None else self.inner
        if positions * num_samples != size or inner == 0 or positions % inner:
            raise ValueError(
                f"dimension {self.dim} has {size} entries, "
                f"which {num_samples} samples do not share evenly"
            )
        return positions // inner, inner

    def __str__(self) -> str:
        return f"dim {self.dim}" + {None: "", 1: ", positions outside"}.get(
            self.inner, f", inner {self.inner}"
        )


def find(full: Sequence[int], part: Sequence[int], num_full: int, num_part: int) -> int | None:
    """The dimension that grows with the batch, None if none does.

    `full` and `part` are shapes of the same tensor for `num_full` and `num_part` samples.
    A shape that grows in two dimensions, or not in proportion, is a ValueError: such rows
    cannot be assigned to samples.
    """
    if len(full) != len(part):
        raise ValueError(
            f"the number of dimensions depends on the batch: {list(full)}, {list(part)}"
        )
    grown = [d for d, (a, b) in enumerate(zip(full, part, strict=True)) if a != b]
    if not grown:
        return None
    (dim, *others) = grown
    if others or full[dim] * num_part != part[dim] * num_full:
        raise ValueError(
            f"shape {list(full)} for {num_full} samples becomes {list(part)} for {num_part}: "
            "not in proportion"
        )
    return dim


def candidates(dim: int, size: int, num_samples: int) -> Iterator[Layout]:
    """All layouts that a dimension of this size allows, the common ones first."""
    positions = size // num_samples
    yield Layout(dim)
    if positions > 1:
        yield Layout(dim, 1)
        yield from (Layout(dim, c) for c in range(2, positions) if positions % c == 0)
