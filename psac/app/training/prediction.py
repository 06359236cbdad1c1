"""Predictions of a trained model for new records.

    for row in predictions(Run("runs/first"), [Path("shoe.png"), Path("more.npz")]): ...

Inputs are made like those of the training data: images get the size and the channels of the model,
tables the ranges and categories that the model stores, texts the tokenizer of the run. Texts stand
in a column of a table, or in a .txt file, one in each line. Columns are matched by name; a missing
one is refused, and other columns are copied, so that predictions can be joined. Labels are not
needed. A category that the model does not know counts as none; a warning says how many there are.
Guarantees: one row per record, in order, numbered from 1 in each file, without the header;
probabilities add up to 1 if a record has one class, and are independent if it may have several.
For records that were not in the training data, predictions reveal no more about the training
records than the model does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from psac.app.data.arrays import inputs_from_npz
from psac.app.data.folders import ENDINGS, images_in
from psac.app.data.images import decoded
from psac.app.data.tables.columns import Column
from psac.app.data.tables.loading import NewRecords, new_records, texts_of
from psac.app.data.tables.reader import table_of
from psac.app.text.classifier import TextClassifier
from psac.app.text.tokens import trimmed
from psac.app.training.own_data import TABLES, is_table
from psac.app.training.run import Run

BATCH = 1024


class Prediction(NamedTuple):
    file: Path
    record: int  # number in its file, from 1
    labels: tuple[str, ...]  # one, or all above 1/2 if a record may have several
    probabilities: dict[str, float]
    others: dict[str, str]  # cells of columns that the model does not use


def predictions(run: Run, files: Iterable[Path]) -> Iterator[Prediction]:
    """Predictions for all records in these files; a folder stands for its images."""
    facts = run.model_facts()
    model, classes, shape = run.model(), facts["classes"], tuple(facts["input_shape"])
    for file in _expanded(files):
        records = _of_texts(file, facts.get("texts"), model) or _read(run, file, facts)
        scores = _scores(model, _checked(records.inputs, shape, file))
        several = facts.get("several_labels", False)
        for place, row in enumerate(scores.sigmoid() if several else scores.softmax(1)):
            shares = dict(zip(classes, row.tolist(), strict=True))
            likely = [name for name in classes if shares[name] > 0.5]
            labels = likely if several else [max(shares, key=lambda name: shares[name])]
            others = {name: cells[place] for name, cells in records.others.items()}
            yield Prediction(file, place + 1, tuple(labels), shares, others)


@torch.no_grad()
def _scores(model: nn.Module, inputs: Tensor) -> Tensor:
    parts = inputs.split(BATCH)
    if isinstance(model, TextClassifier):
        parts = tuple(trimmed(part, model.tokens.padding) for part in parts)
    return torch.cat([model(part).float() for part in parts])


def _expanded(files: Iterable[Path]) -> Iterator[Path]:
    for file in files:
        if not file.exists():
            raise FileNotFoundError(f"{file} does not exist.")
        paths = images_in(file) if file.is_dir() else [file]
        if not paths:
            raise FileNotFoundError(f"{file} contains no images ({' '.join(ENDINGS)}).")
        yield from paths


def _read(run: Run, file: Path, facts: dict[str, Any]) -> NewRecords:
    ending = file.suffix.lower()
    if ending == ".npz":
        return NewRecords(inputs_from_npz(file), {}, {})
    if ending in TABLES:
        return _of_table(run, file, facts.get("columns"))
    if ending in ENDINGS:
        return NewRecords(_of_picture(file, tuple(facts["input_shape"])), {}, {})
    known = " ".join((*ENDINGS, *TABLES, ".npz"))
    raise ValueError(
        f"{file} cannot be read. Pass a file that ends in {known}, or a folder of images."
    )


def _of_texts(file: Path, columns: list[str] | None, model: nn.Module) -> NewRecords | None:
    """Records of text; None if the model takes no text."""
    if not isinstance(model, TextClassifier) or columns is None:
        return None
    if file.suffix.lower() == ".txt" and len(columns) == 1:
        return NewRecords(model.tokens(_lines(file)), {}, {})
    if not is_table(file):
        kinds = " ".join((*TABLES, ".txt") if len(columns) == 1 else TABLES)
        raise ValueError(
            f"{file} cannot be read: the model takes text. Pass a file that ends in {kinds}."
        )
    table = table_of(file)
    if missing := [name for name in columns if name not in table.columns]:
        raise ValueError(
            f"{file} has no column {', '.join(missing)}, in which the model expects text. Its "
            f"columns: {', '.join(table.columns)}."
        )
    cells = {name: texts_of(column) for name, column in table.columns.items()}
    others = {name: texts for name, texts in cells.items() if name not in columns}
    return NewRecords(model.tokens(*(cells[name] for name in columns)), others, {})


def _lines(file: Path) -> list[str]:
    """The lines of a file; not splitlines(), which would also cut within texts."""
    content = file.read_text(encoding="utf-8-sig").removesuffix("\n")
    return [line.removesuffix("\r") for line in content.split("\n")] if content else []


def _of_picture(file: Path, shape: tuple[int, ...]) -> Tensor:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(
            f"{file} is an image, but the model takes inputs of shape {list(shape)}. Pass an .npz "
            "file with x, or a table like the training data."
        )
    size = shape[1] if shape[1] == shape[2] else None
    return decoded(file, size=size, channels=shape[0])[None]


def _of_table(run: Run, file: Path, columns: dict[str, Any] | None) -> NewRecords:
    if not columns:
        raise ValueError(
            f"{file} is a table, but the model, trained on '{run.recipe().data}', does not say how "
            "columns become inputs. Pass an .npz file with x."
        )
    known = {name: Column.from_json(column) for name, column in columns.items()}
    records = new_records(file, known)
    if records.unknown:
        counts = ", ".join(f"{count:,} in {name!r}" for name, count in records.unknown.items())
        warnings.warn(
            f"{file}: some of {len(records.inputs):,} records have a category that the model does "
            f"not know ({counts}). It is treated as none of the known categories.",
            stacklevel=4,
        )
    return records


def _checked(inputs: Tensor, shape: tuple[int, ...], file: Path) -> Tensor:
    if tuple(inputs.shape[1:]) != shape:
        raise ValueError(
            f"{file} has inputs of shape {list(inputs.shape[1:])}, but the model takes "
            f"{list(shape)}."
        )
    return inputs
