"""Records in memory, with fast batches.

A `DataLoader` usually asks for each record and stacks them, which takes longer than a step of a
small model.  Here a batch is one indexing operation.  Guarantees: a batch is what stacking would
give; images from files are stored as bytes, which takes a quarter of the memory, and are returned
as exactly the numbers of `psac.data`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from psac.accounting import Ledger
from psac.app.data.records import AnyRecords, ImageFiles, TextRecords


class Records(Dataset):
    """Inputs and labels; inputs of bytes (uint8) are returned as float32 in [0, 1].

    `released` is the ledger of earlier releases, for `psac.make_private`.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, released: Ledger | None = None) -> None:
        self.inputs, self.labels, self.released = inputs, labels, released

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return _as_floats(self.inputs[number]), self.labels[number]

    def __getitems__(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        batch = torch.tensor(numbers, device=self.labels.device)
        return _as_floats(self.inputs[batch]), self.labels[batch]

    def loader(self, batch_size: int) -> DataLoader:
        """Batches in order, for `make_private` and for evaluation."""
        return DataLoader(self, batch_size=batch_size, collate_fn=_unchanged)

    def to(self, device: torch.device) -> Records:
        return Records(self.inputs.to(device), self.labels.to(device), self.released)

    def where(self, mask: Tensor) -> Records:
        return Records(self.inputs[mask], self.labels[mask], self.released)


def _as_floats(inputs: Tensor) -> Tensor:
    return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs


def _unchanged(batch: Any) -> Any:
    return batch


def records_of(dataset: AnyRecords) -> Records:
    """The records of a data set, each of which has one class or several."""
    if isinstance(dataset, TextRecords):
        raise ValueError(
            f"data '{dataset.name}' is text, but the models of a recipe take numbers. Train with "
            "psac.make_private in your own loop, or convert the texts to features."
        )
    labels = dataset.labels if isinstance(dataset, ImageFiles) else dataset.tensors[1]
    one = labels.dtype == torch.int64 and labels.ndim == 1
    several = labels.dtype == torch.float32 and labels.shape[1:] == (len(dataset.classes),)
    if not one and not several:
        raise ValueError(
            f"data '{dataset.name}' has labels of type {labels.dtype} and shape "
            f"{list(labels.shape)} for {len(dataset.classes)} classes: a recipe trains for one "
            "class per record (whole numbers), or for several (a 0 or 1 for each class)."
        )
    if isinstance(dataset, ImageFiles):
        return Records(dataset.stacked(torch.uint8), labels, dataset.released)
    return Records(dataset.tensors[0], labels, dataset.released)
