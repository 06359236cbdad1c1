"""Records for the tasks, as data sets hold them: one dict of tensors each, text of any length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

RECORDS, SHORTEST, LONGEST, VOCABULARY, CLASSES = 48, 8, 16, 120, 2
PADDING = {"labels": -100}  # other names are padded with zeros

Record = dict[str, Tensor]


def collate(records: Sequence[Record]) -> Record:
    """A batch: what has another length than others is padded at its end."""
    return {
        name: torch.nn.utils.rnn.pad_sequence(
            [record[name] for record in records],
            batch_first=True,
            padding_value=PADDING.get(name, 0),
        )
        if records[0][name].dim()
        else torch.stack([record[name] for record in records])
        for name in records[0]
    }


def made(one: Callable[[], Record]) -> Callable[[], list[Record]]:
    return lambda: [one() for _ in range(RECORDS)]


def tokens(length: int) -> Tensor:
    """None of them is one of the special tokens below 3."""
    return torch.randint(3, VOCABULARY, (length,))


def text(is_ragged: bool = True) -> Record:
    length = int(torch.randint(SHORTEST, LONGEST + 1, ())) if is_ragged else LONGEST
    return {"input_ids": tokens(length), "attention_mask": torch.ones(length, dtype=torch.long)}


def a_class(**more: Any) -> Record:
    return {**text(**more), "labels": torch.randint(CLASSES, ())}


def with_end(**more: Any) -> Record:
    """A class of a text that ends with its token of the end."""
    record = a_class(**more)
    record["input_ids"][-1] = 2
    return record


def a_language(**more: Any) -> Record:
    record = text(**more)
    return {**record, "labels": record["input_ids"].clone()}


def tags(**more: Any) -> Record:
    record = text(**more)
    return {**record, "labels": torch.randint(CLASSES, record["input_ids"].shape)}


def a_span(**more: Any) -> Record:
    return {
        **text(**more),
        "start_positions": torch.randint(SHORTEST // 2, ()),
        "end_positions": torch.randint(SHORTEST // 2, SHORTEST, ()),
    }


def a_translation() -> Record:
    return {**text(), "labels": tokens(int(torch.randint(SHORTEST, LONGEST + 1, ())))}


def a_picture(size: int = 32, channels: int = 3) -> Record:
    return {
        "pixel_values": torch.randn(channels, size, size),
        "labels": torch.randint(CLASSES, ()),
    }


def a_picture_alone(size: int = 32) -> Record:
    return {"pixel_values": torch.randn(3, size, size)}


def a_map(size: int = 32) -> Record:
    """A class for each pixel."""
    return {
        "pixel_values": torch.randn(3, size, size),
        "labels": torch.randint(CLASSES, (size, size)),
    }


def a_sound(length: int = 1600) -> Record:
    return {"input_values": torch.randn(length), "labels": torch.randint(CLASSES, ())}


def a_spoken_text(length: int = 1600) -> Record:
    return {"input_values": torch.randn(length), "labels": torch.randint(1, 20, (4,))}


def a_captioned_picture(size: int = 32) -> Record:
    return {"pixel_values": torch.randn(3, size, size), "labels": tokens(6)}


def a_picture_with_text(size: int = 32) -> Record:
    return {"pixel_values": torch.randn(3, size, size), **text()}


class_of_text, class_with_end = made(a_class), made(with_end)
next_words, tags_of_words, span_of_text = made(a_language), made(tags), made(a_span)
whole_texts = made(lambda: a_class(is_ragged=False))  # for models without a mask of padding
whole_language = made(lambda: a_language(is_ragged=False))
translation, class_of_picture, map_of_picture = made(a_translation), made(a_picture), made(a_map)
picture_alone, class_of_sound, spoken = made(a_picture_alone), made(a_sound), made(a_spoken_text)
captioned, picture_with_text = made(a_captioned_picture), made(a_picture_with_text)
