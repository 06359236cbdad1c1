"""The three kinds of data sets.

    TensorRecords   inputs and labels as two tensors; a record is (input, label)
    ImageFiles      images that are decoded when needed; a record is (image, label)
    TextRecords     a record is {"text": ..., "label": ...}, for pairs of texts with "text_pair"

Each has a `name`, `classes` in the order of the labels, and `unsafe`: a sentence for everything
that was read off the private records without noise because the user allowed it.  Reports must show
these sentences.  `released` is the ledger of what was released while the records were read, with or
without noise; `psac.make_private` starts from it.  It is None if nothing was released.  Guarantees:

- An image is float32 in [0, 1] of shape channels x height x width; a label is an int64 scalar, or
  float32 of one number per class where a record may belong to several.
- `tensors` is (inputs, labels), so that a training loop needs no Python per record.  `ImageFiles`
  decodes all images for it once, at 4 bytes per number.
- Each record depends on no other one.  Nothing is standardised: a mean that was computed from the
  records would be a release that the accountant does not know of.

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
from psac.app.data.images import decoded
from psac.app.data.tables.columns import Columns


class TensorRecords(TensorDataset):
    """Inputs and labels in memory, as `tensors`; `columns` are those of the table, if any."""

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
        inputs.released = released  # type: ignore[attr-defined]  # for data sets that are made of the tensor


class ImageFiles(Dataset[tuple[Tensor, Tensor]]):
    """Images by path, or as (name, content of the file), decoded one at a time.

    Each image is resized so that its shorter side is `size`, and cropped to the square in the
    middle.  With None, images keep their size; to be batched, they must all have the same one.
    """

    def __init__(
        self,
        images: Sequence[Path | tuple[str, bytes]],
        labels: Tensor,
        *,
        name: str,
        classes: Sequence[str],
        size: int | None,
        channels: int = 3,
        unsafe: Sequence[str] = (),
        released: Ledger | None = None,
    ) -> None:
        self.images, self.labels = images, labels
        self.name, self.classes = name, tuple(classes)
        self.size, self.channels = size, channels
        self.unsafe, self.released = tuple(unsafe), released

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        image = decoded(self.images[number], size=self.size, channels=self.channels)
        return image, self.labels[number]

    @functools.cached_property
    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.stacked(torch.float32), self.labels

    def stacked(self, dtype: torch.dtype) -> Tensor:
        """All images as float32 in [0, 1], or as uint8."""
        first = self[0][0]
        inputs = torch.empty(len(self), *first.shape, dtype=dtype)
        for number in range(len(self)):
            image = self[number][0]
            if image.shape != first.shape:
                raise ValueError(
                    f"{self.name}: image {number + 1} has the shape {list(image.shape)}, but the "
                    f"first one has {list(first.shape)}. Pass size=64, or write size = 64 below "
                    "[data_settings] of a recipe, to make them squares of one size."
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


AnyRecords = TensorRecords | ImageFiles | TextRecords
