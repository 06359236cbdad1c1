"""The user's own tables: a file or a frame with a column of labels.

With `text`, a record is {"text": ..., "label": ...} of these two columns.  Without it, all other
columns become one vector of float32 (`psac.app.data.columns`).

What a feature is must not depend on who is in the table.  So kinds, ranges, categories and classes
are stated, inline or in a schema (`psac.app.data.schema`), or released with noise for a `budget`
(`psac.app.data.released`); what is stated nowhere is refused (`psac.app.data.stating`).  All cells
that cannot be used are reported at once: the message names cells, and is for the owner's eyes.

Records carry what they cost: `released`, a ledger that `psac.make_private` begins with, or None,
and `unsafe`, sentences on what was read off the records because `unsafe=True` allowed it.

Records that belong together have the same columns (`columns=first.columns`): by their names,
whatever their order in the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from psac.app.data.cells import Cells, quoted
from psac.app.data.columns import Columns, features_of, refuse, refuse_others
from psac.app.data.entry import DataNotFound
from psac.app.data.reading import Table, record_numbers, table_of
from psac.app.data.records import TensorRecords, TextRecords
from psac.app.data.released import Budget
from psac.app.data.schema import Schema, schema_of
from psac.app.data.stating import features_named, like, stated
from psac.errors import PrivacyWarning


def from_table(
    source: Any,
    *,
    schema: Any = None,
    label: str | None = None,
    text: str | None = None,
    classes: Sequence[Any] | None = None,
    ranges: Mapping[str, Any] | str | None = None,
    dates: Mapping[str, Any] | str | None = None,
    categories: Mapping[str, Any] | str | None = None,
    missing: Mapping[str, Any] | str | None = None,
    ignore: Sequence[str] | None = None,
    unconfirmed: Sequence[str] | None = None,
    unsafe: bool | None = None,
    columns: Columns | None = None,
    budget: Budget | None = None,
) -> TensorRecords | TextRecords:
    """Records of a CSV, TSV or Parquet file, or of a frame of pandas, polars or pyarrow.

    `schema` is a TOML file (`psac data describe` writes one) or a mapping of the same keys; keys
    that are given here take the place of its own.  `columns` are those of records that these must
    be like, such as `train.columns` for a test.  `budget` pays for what is to be "private".
    """
    given = {
        **{"schema": schema, "label": label, "text": text, "classes": classes, "ranges": ranges},
        **{"dates": dates, "categories": categories, "missing": missing, "ignore": ignore},
        **{"unconfirmed": unconfirmed, "unsafe": unsafe},
    }
    settings = schema_of({name: value for name, value in given.items() if value is not None})
    return _records(table_of(source), settings, columns, budget)


def from_csv(path: Any, **settings: Any) -> TensorRecords | TextRecords:
    """Records of a CSV or TSV file: `from_table`."""
    return from_table(path, **settings)


def from_parquet(path: Any, **settings: Any) -> TensorRecords | TextRecords:
    """Records of a Parquet file: `from_table`."""
    return from_table(path, **settings)


class NewRecords(NamedTuple):
    """Records to predict: features, the cells of all other columns as text, by their names, and how
    many cells of a column have a category that the model does not know."""

    inputs: Tensor
    others: dict[str, list[str]]
    unknown: dict[str, int]


def new_records(source: Any, columns: Columns) -> NewRecords:
    """The features of a table that need not have labels; columns are found by their names."""
    table = table_of(source)
    refuse_others(table, columns, also=False)
    unknown = {name: column.unknown(table.columns[name]) for name, column in columns.items()}
    others = {name: texts_of(cells) for name, cells in table.columns.items() if name not in columns}
    return NewRecords(
        torch.from_numpy(features_of(table, columns)),
        others,
        {name: count for name, count in unknown.items() if count},
    )


def column_names(source: Any) -> list[str]:
    """Those of a table."""
    return list(table_of(source).columns)


def texts_of(cells: Cells) -> list[str]:
    """The cell of each record, as it stands."""
    texts = ["" if value is None else str(value) for value in cells.values]
    return [texts[code] for code in cells.codes]


# ---- Records


def _records(
    table: Table, schema: Schema, columns: Columns | None, budget: Budget | None
) -> TensorRecords | TextRecords:
    _check(table, schema, columns)
    if columns is None:
        known = stated(table, schema, budget)
    else:
        refuse_others(_without_labels(table, schema), columns)
        known = like(columns, table, schema)
    for sentence in known.unsafe:
        warnings.warn(f"{table.place}: {sentence}", PrivacyWarning, stacklevel=3)
    assert schema.label is not None
    labels, faults = _labels(table.columns[schema.label], schema.label, known.classes)
    marks: Any = {
        **{"name": table.stem, "classes": known.classes},
        **{"unsafe": known.unsafe, "released": known.ledger},
    }
    if schema.text is not None:
        return _of_texts(table, schema.text, labels, faults, marks)
    features = features_of(table, known.columns, faults)
    inputs, numbers = torch.from_numpy(features), torch.from_numpy(labels)
    return TensorRecords(inputs, numbers, columns=known.columns, **marks)


def _without_labels(table: Table, schema: Schema) -> Table:
    return table._replace(
        columns={name: table.columns[name] for name in features_named(table, schema)}
    )


def _of_texts(
    table: Table, name: str, labels: np.ndarray, faults: list[str], marks: dict[str, Any]
) -> TextRecords:
    cells = table.columns[name]
    empty = np.array([value is None or value == "" for value in cells.values], bool)
    if empty.any():
        count = int(empty[cells.codes].sum())
        records = record_numbers(cells.records_with(empty), count)
        faults.append(f"{name}: {count:,} texts are missing, in {records}")
    refuse(table, faults)
    pairs = zip(texts_of(cells), labels.tolist(), strict=True)
    return TextRecords([{"text": text, "label": label} for text, label in pairs], **marks)


def _labels(cells: Cells, name: str, classes: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """The number of the class of each record, and what is wrong."""
    places = {text: place for place, text in enumerate(classes)}
    found = np.array([places.get(text, -1) for text in cells.texts()], np.int64)
    faults, missing = [], cells.missing() & (found < 0)
    for chosen, what in ((missing, "empty"), ((found < 0) & ~missing, "of no class")):
        if chosen.any():
            count, first = int(chosen[cells.codes].sum()), cells.records_with(chosen)
            labels = quoted(cells.texts()[cells.codes[number]] for number in first)
            told = "" if what == "empty" else f" {labels}"
            known = "" if what == "empty" else f"; the classes are {', '.join(classes)}"
            records = record_numbers(first, count)
            faults.append(f"{name}: {count:,} labels are {what}{told}, in {records}{known}")
    return found[cells.codes], faults


def _check(table: Table, schema: Schema, columns: Columns | None) -> None:
    if schema.label is None:
        raise ValueError(
            f"{table.place} is a table: say which column holds the classes (label). It has: "
            f"{', '.join(table.columns)}."
        )
    needed = [schema.label] if columns is not None else schema.mentioned
    needed += [schema.text] if schema.text is not None else []
    absent = [name for name in dict.fromkeys(needed) if name not in table.columns]
    if absent:
        raise ValueError(
            f"{table.place} has no column {quoted(absent)}. It has: "
            f"{', '.join(table.columns) or 'none'}."
        )
    if not table.num_records:
        raise DataNotFound(f"{table.place} holds no records.")
    if schema.text is None and not features_named(table, schema):
        raise ValueError(
            f"{table.place} has only the column {schema.label!r} and what is ignored: there is "
            "nothing to learn from."
        )
    if schema.text is not None and (schema.described or columns is not None):
        raise ValueError(
            "ranges, dates, categories, missing and columns are for tables without a column of "
            "text."
        )
