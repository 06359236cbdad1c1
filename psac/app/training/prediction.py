"""What a trained model says of records that it has not met.

    for row in predictions(Run("runs/first"), [Path("shoe.png"), Path("more.npz")]): ...

Inputs are made as those of the training data were: pictures get the size and the channels of the
model's input, columns of a table the ranges and categories that the model keeps.  Columns are found
by their names, in any order; a missing one is refused, and other ones are carried through, so that
answers can be joined to what they belong to.  An .npz needs `x` alone, a table no column of labels.
A category that the model does not know counts as none, and a warning says how many there are.
Guarantees: a row for each record, in order, numbered from 1 in each file (the line that names the
columns is no record); probabilities add up to 1
where a record has one class, and stand each for itself where it may have several; what does not fit
the model is refused with what does.  The predictions for a record that was not in the training data
tell no more of those that were than the model does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from psac.app.data.arrays import inputs_from_npz
from psac.app.data.columns import Column
from psac.app.data.folders import ENDINGS, images_in
from psac.app.data.images import decoded
from psac.app.data.tables import NewRecords, new_records
from psac.app.training.own_data import TABLES
from psac.app.training.run import Run

BATCH = 1024


class Prediction(NamedTuple):
    file: Path
    record: int  # in its file, from 1
    labels: tuple[str, ...]  # one, or all above 1/2 where a record may have several
    probabilities: dict[str, float]
    others: dict[str, str]  # cells of columns that the model does not read


def predictions(run: Run, files: Iterable[Path]) -> Iterator[Prediction]:
    """Of all records in these files; a folder stands for the pictures in it."""
    facts = run.model_facts()
    model, classes, shape = run.model(), facts["classes"], tuple(facts["input_shape"])
    for file in _expanded(files):
        given = _read(run, file, facts)
        inputs = _checked(given.inputs, shape, file)
        with torch.no_grad():
            scores = torch.cat([model(part).float() for part in inputs.split(BATCH)])
        several = facts.get("several_labels", False)
        for place, row in enumerate(scores.sigmoid() if several else scores.softmax(1)):
            shares = dict(zip(classes, row.tolist(), strict=True))
            surest = [max(shares, key=lambda name: shares[name])]
            chosen = [name for name in classes if shares[name] > 0.5] if several else surest
            others = {name: cells[place] for name, cells in given.others.items()}
            yield Prediction(file, place + 1, tuple(chosen), shares, others)


def _expanded(files: Iterable[Path]) -> Iterator[Path]:
    for file in files:
        if not file.exists():
            raise FileNotFoundError(f"there is no file {file}.")
        found = images_in(file) if file.is_dir() else [file]
        if not found:
            raise FileNotFoundError(f"there are no pictures ({' '.join(ENDINGS)}) in {file}.")
        yield from found


def _read(run: Run, file: Path, facts: dict[str, Any]) -> NewRecords:
    ending = file.suffix.lower()
    if ending == ".npz":
        return NewRecords(inputs_from_npz(file), {}, {})
    if ending in TABLES:
        return _of_table(run, file, facts.get("columns"))
    if ending in ENDINGS:
        return NewRecords(_of_picture(file, tuple(facts["input_shape"])), {}, {})
    known = " ".join((*ENDINGS, *TABLES, ".npz"))
    raise ValueError(f"{file} is of no kind that can be read: give {known}, or a folder.")


def _of_picture(file: Path, shape: tuple[int, ...]) -> Tensor:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(
            f"{file} is a picture, but the model takes inputs of shape {list(shape)}: give an .npz "
            "with x, or a table like that of its training data."
        )
    size = shape[1] if shape[1] == shape[2] else None
    return decoded(file, size=size, channels=shape[0])[None]


def _of_table(run: Run, file: Path, columns: dict[str, Any] | None) -> NewRecords:
    if not columns:
        raise ValueError(
            f"{file} is a table, but the run was trained on '{run.recipe().data}', which is none "
            "of numbers, or by an older version of psac: how its columns would become inputs is "
            "not known. Give an .npz with x."
        )
    known = {name: Column.from_json(column) for name, column in columns.items()}
    found = new_records(file, known)
    if found.unknown:
        counts = ", ".join(f"{count:,} in {name!r}" for name, count in found.unknown.items())
        warnings.warn(
            f"{file}: of {len(found.inputs):,} records, some have a category that the model does "
            f"not know ({counts}). It counts as none of those that were learned.",
            stacklevel=4,
        )
    return found


def _checked(inputs: Tensor, shape: tuple[int, ...], file: Path) -> Tensor:
    if tuple(inputs.shape[1:]) != shape:
        raise ValueError(
            f"{file} has inputs of shape {list(inputs.shape[1:])}, but the model takes "
            f"{list(shape)}."
        )
    return inputs
