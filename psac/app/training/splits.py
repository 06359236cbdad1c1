"""The data of a run: what is trained on, and what is evaluated on.

A recipe's `data` is a name of `psac.data`, or a path of the user's own.  With `validation_fraction`
0 the evaluation is on the test split.  Above 0 it is on a part of the training data that is held
out before anything else, so that settings can be compared without the test split.  Guarantees:

- No record is in both.  Who is held out is a function of the record's number alone (a hash), so it
  is the same in every run and tells nothing of the record.  The number is the record's name: to
  remove a record, for the relation of the accounting, is to leave its number empty.
- Evaluation records are private unless somebody said otherwise: the entry of a named data set, of
  its test split as it was published, or the recipe (`test_is_public`).  What is computed from
  private ones has no noise: `public` is False then, and those who write it down must say so.
- Training and evaluation records have inputs of one shape, and labels that count the same classes.
  Columns of tables are matched by their names.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from psac.app.data.columns import Columns
from psac.app.training.own_data import Split, load_own, renumbered
from psac.app.training.recipe import Recipe, did_you_mean
from psac.app.training.records import Records, records_of
from psac.app.training.released import ReleasedColumns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Splits:
    """`classes` are their names, in the order of the labels; `columns` those of a table.

    `unsafe` are the sentences of `psac.app.data.records` on what was read off private records.
    """

    training: Records
    evaluation: Records
    split: Literal["test", "validation"]
    classes: tuple[str, ...]
    columns: Columns | None = None
    unsafe: tuple[str, ...] = ()
    public: bool = False  # whether what is computed from `evaluation` may be shown

    def mark(self) -> dict[str, bool]:
        """What a line about the evaluation must say: only `"public": true` may be shown."""
        return {"public": True} if self.public else {"private": False}

    @property
    def released(self) -> ReleasedColumns | None:
        """What was released of the training records while they were read, with noise."""
        ledger = self.training.released
        if ledger is None or not ledger.releases or self.columns is None:
            return None
        return ReleasedColumns(columns=self.columns, unsafe=self.unsafe, ledger=ledger)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.training.inputs.shape[1:])

    def to(self, device: torch.device) -> Splits:
        training, evaluation = self.training.to(device), self.evaluation.to(device)
        return dataclasses.replace(self, training=training, evaluation=evaluation)


def load_splits(recipe: Recipe, kept: ReleasedColumns | None = None) -> Splits:
    """The data that the recipe names; `kept` is what a run has released of them already."""
    training = _load(recipe, "train", columns=None if kept is None else kept.columns)
    if kept is not None:
        training.unsafe, training.released = kept.unsafe, kept.ledger
    classes, records = tuple(training.classes), records_of(training)
    columns = getattr(training, "columns", None)
    if recipe.validation_fraction:
        found = _validated(records, classes, recipe.validation_fraction)
        return dataclasses.replace(found, columns=columns, unsafe=training.unsafe)
    test = _load(recipe, "test", columns=columns, classes=classes)
    evaluation = records_of(test)
    evaluation.labels = renumbered(evaluation.labels, tuple(test.classes), classes, recipe.data)
    if evaluation.inputs.shape[1:] != records.inputs.shape[1:]:
        raise ValueError(
            f"data '{recipe.data}': test inputs have the shape "
            f"{list(evaluation.inputs.shape[1:])}, training inputs "
            f"{list(records.inputs.shape[1:])}. Make them alike."
        )
    return Splits(
        training=records,
        evaluation=evaluation,
        split="test",
        classes=classes,
        columns=columns,
        unsafe=training.unsafe,
        public=test_is_public(recipe),
    )


def test_is_public(recipe: Recipe) -> bool:
    """Whether somebody said so.  Files in a folder of the user's own may be any."""
    from psac.app.data.catalogue import ENTRIES

    entry = ENTRIES.get(recipe.data)
    as_published = entry is not None and entry.test_is_public and recipe.data_root is None
    return recipe.test_is_public or as_published


def _load(
    recipe: Recipe,
    split: Split,
    *,
    columns: Columns | None,
    classes: tuple[str, ...] | None = None,
) -> Any:
    from psac.app import data

    refuse_unknown_data(recipe)
    if recipe.data in data.names():
        return data.load(recipe.data, split, root=recipe.data_root, **recipe.data_settings)
    return load_own(recipe, split, columns, classes)


def refuse_unknown_data(recipe: Recipe) -> None:
    """Raises if the data are neither known by name nor there."""
    from psac.app import data

    if recipe.data in data.names():
        return
    if not Path(recipe.data).expanduser().exists():
        raise ValueError(
            f"data '{recipe.data}' is neither a name nor a path that exists. Names: "
            f"{', '.join(data.names())}.{did_you_mean(recipe.data, data.names())}"
        )
    if recipe.data_root is not None:
        raise ValueError(
            f"data_root is for named data, but '{recipe.data}' is a path. Leave it out."
        )


def _validated(records: Records, classes: tuple[str, ...], fraction: float) -> Splits:
    """A part of the records, which is not trained on."""
    out = held_out(len(records), fraction)
    if not 0 < int(out.sum()) < len(records):
        raise ValueError(
            f"validation_fraction {fraction} of {len(records)} records holds out {int(out.sum())} "
            "of them: there must be some to train on and some to evaluate on."
        )
    return Splits(
        training=records.where(~out),
        evaluation=records.where(out),
        split="validation",
        classes=classes,
    )


def held_out(num_records: int, fraction: float) -> Tensor:
    """Which records are for validation: a hash of the number falls below the fraction."""
    limit = int(fraction * 2**64)
    digests = (hashlib.sha256(f"psac validation {k}".encode()).digest() for k in range(num_records))
    return torch.tensor([int.from_bytes(digest[:8], "big") < limit for digest in digests])
