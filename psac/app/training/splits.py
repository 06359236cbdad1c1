"""The records of a run: those to train on and those to evaluate on.

In a recipe, `data` is a name in `psac.data` or the path of your own data.  With a
`validation_fraction` of 0, the run is evaluated on the test split; otherwise, on a part of the
training records that is held out first, so that settings can be compared without the test split.
Guarantees:

- No record is in both.  Whether a record is held out is a hash of its number, so it is the same in
  every run and independent of the record.  The number identifies the record: removing a record, in
  the sense of the accounting, leaves its number unused.
- Evaluation records are private unless they are the published test split of a named data set, or
  the recipe says otherwise (`test_is_public`).  `public` is False for private ones; results on them
  have no noise and must be marked.
- Training and evaluation records have inputs of the same shape and labels of the same classes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from psac.app import models
from psac.app.data.records import AnyRecords
from psac.app.data.tables.columns import Columns
from psac.app.text.classifier import tokens_of
from psac.app.text.tokens import Tokens
from psac.app.training.in_memory import Records, records_of
from psac.app.training.own_data import Split, load_own
from psac.app.training.recipe import Recipe
from psac.app.training.released_columns import ReleasedColumns
from psac.checks import suggestion


@dataclasses.dataclass(frozen=True, kw_only=True)
class Splits:
    """`classes` are in the order of the labels; `columns` are those of a table.

    `unsafe` says what was read off private records (`psac.app.data.records`).
    """

    training: Records
    evaluation: Records
    split: Literal["test", "validation"]
    classes: tuple[str, ...]
    columns: Columns | None = None
    unsafe: tuple[str, ...] = ()
    public: bool = False  # whether results on `evaluation` may be published

    def mark(self) -> dict[str, bool]:
        """The mark of results on the evaluation records; `"public": true` may be published."""
        return {"public": True} if self.public else {"private": False}

    @property
    def released(self) -> ReleasedColumns | None:
        """The columns that were released with noise while the training records were read."""
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


def load_splits(recipe: Recipe, released: ReleasedColumns | None = None) -> Splits:
    """The records that the recipe names; `released` are columns of a resumed run."""
    training = _load(recipe, "train", columns=None if released is None else released.columns)
    if released is not None:
        training.unsafe, training.released = released.unsafe, released.ledger
    tokens = _tokens(recipe)
    classes, records = tuple(training.classes), records_of(training, tokens)
    columns = getattr(training, "columns", None)
    if recipe.validation_fraction:
        splits = _with_validation(records, classes, recipe.validation_fraction)
        return dataclasses.replace(splits, columns=columns, unsafe=training.unsafe)
    test = _load(recipe, "test", columns=columns, classes=classes)
    evaluation = records_of(test, tokens)
    if evaluation.inputs.shape[1:] != records.inputs.shape[1:]:
        raise ValueError(
            f"data '{recipe.data}': test inputs have the shape "
            f"{list(evaluation.inputs.shape[1:])}, but training inputs have "
            f"{list(records.inputs.shape[1:])}. Give them the same shape."
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


def _tokens(recipe: Recipe) -> Tokens | None:
    """What makes numbers of texts, if the model is a language model."""
    if not models.takes_text(recipe.model):
        return None
    return tokens_of(recipe.model, **recipe.model_settings)


def test_is_public(recipe: Recipe) -> bool:
    """Whether the test records are stated to be public; files in your own folder are not."""
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
) -> AnyRecords:
    from psac.app import data

    refuse_unknown_data(recipe)
    if recipe.data in data.names():
        return data.load(recipe.data, split, root=recipe.data_root, **recipe.data_settings)
    return load_own(recipe, split, columns, classes)


def refuse_unknown_data(recipe: Recipe) -> None:
    """Raises if the data are neither a known name nor an existing path."""
    from psac.app import data

    if recipe.data in data.names():
        return
    if not Path(recipe.data).expanduser().exists():
        raise ValueError(
            f"data '{recipe.data}' is neither a known name nor an existing path. Names: "
            f"{', '.join(data.names())}.{suggestion(recipe.data, data.names())}"
        )
    if recipe.data_root is not None:
        raise ValueError(
            f"data_root is for named data sets, but '{recipe.data}' is a path. Leave it out."
        )


def _with_validation(records: Records, classes: tuple[str, ...], fraction: float) -> Splits:
    """The records, of which a part is held out."""
    out = held_out(len(records), fraction)
    if not 0 < int(out.sum()) < len(records):
        raise ValueError(
            f"validation_fraction {fraction} of {len(records)} records holds out {int(out.sum())} "
            "of them. Some must be left to train on, and some to evaluate on."
        )
    return Splits(
        training=records.where(~out),
        evaluation=records.where(out),
        split="validation",
        classes=classes,
    )


def held_out(num_records: int, fraction: float) -> Tensor:
    """Which records are held out: those whose hashed number is below the fraction."""
    limit = int(fraction * 2**64)
    digests = (hashlib.sha256(f"psac validation {k}".encode()).digest() for k in range(num_records))
    return torch.tensor([int.from_bytes(digest[:8], "big") < limit for digest in digests])
