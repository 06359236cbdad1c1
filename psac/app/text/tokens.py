"""Texts as numbers: what the tokenizer makes of them, padded to public lengths.

    tokens = Tokens(tokenizer, (16, 32, 64))
    ids = tokens(["good", "not so good"])         # int32 [2, 64], padded behind

A text is cut to the largest of the lengths, and of a pair the longer text is cut first.  In
training, `psac.make_private(lengths=...)` pads each record to the smallest length that holds it.
The lengths are public constants of the recipe, so that the shape of a record does not depend on
other records.  Guarantees: the numbers of a text depend on that text and the tokenizer alone; a
row is what the tokenizer gives for its text, and padding behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from psac.app.data.optional import needed

LENGTHS = (16, 32, 64, 128)
CHUNK = 10_000  # texts at a time, to limit memory


def checked_lengths(lengths: Any) -> tuple[int, ...]:
    """Public lengths in rising order."""
    listed = isinstance(lengths, Sequence) and not isinstance(lengths, str) and len(lengths) > 0
    if not listed or not all(type(length) is int and length >= 4 for length in lengths):
        raise ValueError(
            f"lengths is {lengths!r}: pass a list of whole numbers from 4 on, the numbers of "
            "tokens that texts are padded to, such as [16, 32, 64]. Longer texts are cut to the "
            "largest."
        )
    return tuple(sorted(set(lengths)))


def tokenizer_in(folder: Path) -> Any:
    """The tokenizer of a model folder; nothing is fetched."""
    library = needed("transformers", package="transformers", purpose="a model for text", extra="hf")
    try:
        return library.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder} has no tokenizer that can be read ({error}).") from error


class Tokens:
    """Turns records of text into rows of token numbers; `padding` is the number that fills up."""

    def __init__(self, tokenizer: Any, lengths: Sequence[int]) -> None:
        self.tokenizer, self.lengths = tokenizer, checked_lengths(lengths)
        self.padding = int(tokenizer.pad_token_id)

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Tensor:
        """int32 of shape [texts, largest length]."""
        rows = torch.full((len(texts), self.lengths[-1]), self.padding, dtype=torch.int32)
        for start in range(0, len(texts), CHUNK):
            part = slice(start, start + CHUNK)
            second = None if pairs is None else list(pairs[part])
            for place, ids in enumerate(self._encoded(list(texts[part]), second), start=start):
                rows[place, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        return rows

    def _encoded(self, texts: list[str], pairs: list[str] | None) -> list[list[int]]:
        longest = {"truncation": True, "max_length": self.lengths[-1]}
        return self.tokenizer(texts, pairs, **longest)["input_ids"]


def trimmed(ids: Tensor, padding: int) -> Tensor:
    """The rows without the padding that all of them have."""
    return ids[:, : int(own_lengths(ids, padding).max())] if len(ids) else ids


def own_lengths(ids: Tensor, padding: int) -> Tensor:
    """How many numbers of each row are not padding behind it.

    >>> own_lengths(torch.tensor([[5, 0, 6, 0], [0, 0, 0, 0]]), 0)
    tensor([3, 1])
    """
    places = torch.arange(1, ids.shape[1] + 1) * (ids != padding)
    return places.amax(1).clamp(min=1)
