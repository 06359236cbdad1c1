"""The three kinds of data set: records with numbers, each of which depends on no other record.

    TensorRecords   all inputs and labels as two tensors; a record is (input, label)
    ImageFiles      pictures that are decoded when asked for; a record is (image, label)
    TextRecords     a record is {"text": ..., "label": ...}, for pairs of texts with "text_pair"

Each has `name` and `classes`, the names of the classes in the order of the labels, and `unsafe`:
a sentence for everything that was read off the private records without noise, because the user
allowed it.  Whoever shows anything of a run must show these sentences.  `released` is the ledger of
what was released while the records were read, with noise or without, which `psac.make_private` goes
on from; None if nothing was.  Guarantees:

- An image is float32 in [0, 1] of shape channels x height x width; a label is an int64 scalar, or
  float32 of one number per class where a record may belong to several.
- `tensors` is (inputs, labels) as a whole, so that a training loop needs no Python per record.
  That of `ImageFiles` is made when first asked for, and then kept: 4 bytes for each number.
- Nothing is standardised.  A mean or a vocabulary that was computed from the records would tell of
  them outside of what the accountant counts; scaling uses public constants alone.

>>> import torch
>>> records = TensorRecords(torch.zeros(2, 1, 8, 8), torch.tensor([1, 0]), name="two", classes="ab")
>>> len(records), records[0][1], records.classes
(2, tensor(1), ('a', 'b'))
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from psac.accounting import Ledger
from psac.app.data.columns import Columns
from psac.app.data.images import decoded


class TensorRecords(TensorDataset):
    """Inputs and labels in memory: `tensors` is both, whole.

    `columns` are those of the table that they come from, by `psac.app.data.columns`, or None.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        *,
        name: str,
        classes: Sequence[str],
        columns: Columns | None = None,
        unsafe: Sequence[str] = (),
        released: Ledger | None = None,
    ) -> None:
        super().__init__(inputs, labels)
        self.name, self.classes, self.columns = name, tuple(classes), columns
        self.unsafe, self.released = tuple(unsafe), released
        inputs.released = released  # type: ignore[attr-defined]  # also for a data set made of it


class ImageFiles(Dataset[tuple[Tensor, Tensor]]):
    """Pictures by their paths, or as (name, content of the file), decoded one at a time.

    `size` is the side of the square that is cut out of the middle after the shorter side was
    resized to it; None leaves pictures as they are, which then must have one size to be batched.
    """

    unsafe: tuple[str, ...] = ()
    released: Ledger | None = None

    def __init__(
        self,
        images: Sequence[Path | tuple[str, bytes]],
        labels: Tensor,
        *,
        name: str,
        classes: Sequence[str],
        size: int | None,
        channels: int = 3,
    ) -> None:
        self.images, self.labels = images, labels
        self.name, self.classes = name, tuple(classes)
        self.size, self.channels = size, channels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        image = decoded(self.images[number], size=self.size, channels=self.channels)
        return image, self.labels[number]

    @functools.cached_property
    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.stacked(torch.float32), self.labels

    def stacked(self, dtype: torch.dtype) -> Tensor:
        """All images: as float32 in [0, 1], or as uint8, a quarter of the size."""
        first = self[0][0]
        inputs = torch.empty(len(self), *first.shape, dtype=dtype)
        for number in range(len(self)):
            image = self[number][0]
            if image.shape != first.shape:
                raise ValueError(
                    f"{self.name}: image {number + 1} has the shape {list(image.shape)}, the first "
                    f"one {list(first.shape)}. Pass size=64 or the like to make them alike. Give a "
                    "size in a recipe by data_settings = {size = 64}."
                )
            inputs[number] = (image * 255).round() if dtype == torch.uint8 else image
        return inputs


class TextRecords(Dataset[dict[str, Any]]):
    """One or two texts and a label for each record."""

    def __init__(
        self,
        records: Sequence[dict[str, Any]],
        *,
        name: str,
        classes: Sequence[str],
        unsafe: Sequence[str] = (),
        released: Ledger | None = None,
    ) -> None:
        self.records, self.name, self.classes = records, name, tuple(classes)
        self.unsafe, self.released = tuple(unsafe), released

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.records[number]
