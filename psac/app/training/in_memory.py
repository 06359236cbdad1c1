"""Records in memory, with fast batches.

A `DataLoader` usually asks for each record and stacks them, which takes longer than a step of a
small model.  Here a batch is one indexing operation.  Guarantees: a batch is what stacking would
give; images from files are stored as bytes, which takes a quarter of the memory, and are returned
as exactly the numbers of `psac.data`.  Texts are stored as token numbers (`TokenRecords`); a record
is its own tokens, and is padded in its batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from psac.accounting import Ledger
from psac.app import models
from psac.app.data.records import AnyRecords, ImageFiles, TextRecords
from psac.app.text.tokens import Tokens, own_lengths


class Records(Dataset):
    """Inputs and labels; inputs of bytes (uint8) are returned as float32 in [0, 1].

    `released` is the ledger of earlier releases, for `psac.make_private`; `lengths` are the public
    lengths that it pads records to, if they have different ones.
    """

    lengths: tuple[int, ...] | None = None

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
        """Batches in order, for `make_private`."""
        return DataLoader(self, batch_size=batch_size, collate_fn=_unchanged)

    def parts(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Numbers, inputs and labels of so many records at a time, each record once."""
        for numbers in torch.arange(len(self)).split(batch_size):
            yield numbers, *self.__getitems__(numbers.tolist())

    def to(self, device: torch.device) -> Records:
        return Records(self.inputs.to(device), self.labels.to(device), self.released)

    def where(self, mask: Tensor) -> Records:
        return Records(self.inputs[mask], self.labels[mask], self.released)


class TokenRecords(Records):
    """Texts: rows of token numbers, with padding behind, and their labels.

    `texts` has the text of each record, for reports on public ones; `pairs` says whether it is a
    pair.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        released: Ledger | None = None,
        *,
        tokens: Tokens,
        texts: Sequence[str],
        pairs: bool = False,
    ) -> None:
        super().__init__(inputs, labels, released)
        self.tokens, self.texts, self.pairs = tokens, texts, pairs
        self.lengths = tokens.lengths
        self._own_lengths = own_lengths(inputs, tokens.padding).tolist()

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.inputs[number, : self._own_lengths[number]], self.labels[number]

    def __getitems__(self, numbers: list[int]) -> Any:
        return [self[number] for number in numbers]

    def loader(self, batch_size: int) -> DataLoader:
        return DataLoader(self, batch_size=batch_size, collate_fn=Padded(self.tokens.padding))

    def parts(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Short texts first, so that there is little padding."""
        lengths = torch.tensor(self._own_lengths)
        for numbers in lengths.argsort(stable=True).split(batch_size):
            longest = int(lengths[numbers].max())
            place = numbers.to(self.labels.device)
            yield numbers, self.inputs[place, :longest], self.labels[place]

    def to(self, device: torch.device) -> TokenRecords:
        return self._with(self.inputs.to(device), self.labels.to(device), self.texts)

    def where(self, mask: Tensor) -> TokenRecords:
        kept = [text for text, wanted in zip(self.texts, mask.tolist(), strict=True) if wanted]
        return self._with(self.inputs[mask], self.labels[mask], kept)

    def _with(self, inputs: Tensor, labels: Tensor, texts: Sequence[str]) -> TokenRecords:
        more: Any = {"tokens": self.tokens, "texts": texts, "pairs": self.pairs}
        return TokenRecords(inputs, labels, self.released, **more)


class Padded:
    """A `collate_fn` that pads records behind to the longest one."""

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, records: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        rows, labels = zip(*records, strict=True)
        inputs = pad_sequence(list(rows), batch_first=True, padding_value=self.padding)
        return inputs, torch.stack(labels)


def _as_floats(inputs: Tensor) -> Tensor:
    return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs


def _unchanged(batch: Any) -> Any:
    return batch


def records_of(dataset: AnyRecords, tokens: Tokens | None = None) -> Records:
    """The records of a data set, each of which has one class or several.

    `tokens` are those of a language model, which takes texts and nothing else.
    """
    if isinstance(dataset, TextRecords) != (tokens is not None):
        kind, wanted = ("text", "numbers") if tokens is None else ("numbers", "text")
        language = ", ".join(name for name in models.names() if models.takes_text(name))
        raise ValueError(
            f"data '{dataset.name}' is {kind}, but the model takes {wanted}. Models for text: "
            f"{language}."
        )
    if isinstance(dataset, TextRecords):
        assert tokens is not None
        return _tokenized(dataset, tokens)
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


def _tokenized(dataset: TextRecords, tokens: Tokens) -> TokenRecords:
    records = list(dataset.records)
    first = [record["text"] for record in records]
    pairs = [record["text_pair"] for record in records] if "text_pair" in records[0] else None
    both = zip(first, pairs or [], strict=pairs is not None)
    more: Any = {"texts": [" / ".join(pair) for pair in both] or first, "pairs": pairs is not None}
    labels = torch.tensor([record["label"] for record in records])
    return TokenRecords(tokens(first, pairs), labels, dataset.released, tokens=tokens, **more)
