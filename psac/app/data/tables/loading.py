"""Your own tables: a file or a frame with a column of labels becomes records.

With `text`, a record is {"text": ..., "label": ...}.  Without it, all other columns become one
vector of float32 (columns.py).

How a feature is computed must not depend on who is in the table.  So kinds, ranges, categories and
classes are stated, inline or in a schema (schema.py), or released with noise for a `budget`
(private_release.py).  What is not stated is refused (resolve.py).  All cells that cannot be used
are reported at once; the message quotes cells, so it is for the owner of the data only.

The records carry their cost: `released` is the ledger that `psac.make_private` starts from, or
None; `unsafe` says what was read off the records because `unsafe=True` allowed it.  Test records
take the columns of the training records (`columns=train.columns`), in any order in the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from psac.app.data.entry import DataNotFound
from psac.app.data.records import TensorRecords, TextRecords
from psac.app.data.tables.cells import Cells, quoted
from psac.app.data.tables.columns import Columns, features_of, refuse, refuse_others
from psac.app.data.tables.private_release import Budget
from psac.app.data.tables.reader import Table, record_numbers, table_of
from psac.app.data.tables.resolve import features_named, resolve, resolve_like
from psac.app.data.tables.schema import Schema, schema_of
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

    `schema` is a TOML file (`psac data describe` writes one) or a mapping with the same keys; the
    other arguments override its keys.  `columns` are those of earlier records, such as
    `train.columns` for test records.  `budget` pays for everything that is "private".
    """
    settings = {
        **{"schema": schema, "label": label, "text": text, "classes": classes, "ranges": ranges},
        **{"dates": dates, "categories": categories, "missing": missing, "ignore": ignore},
        **{"unconfirmed": unconfirmed, "unsafe": unsafe},
    }
    stated = schema_of({name: value for name, value in settings.items() if value is not None})
    return _records(table_of(source), stated, columns, budget)


def from_csv(path: Any, **settings: Any) -> TensorRecords | TextRecords:
    """Records of a CSV or TSV file: `from_table`."""
    return from_table(path, **settings)


def from_parquet(path: Any, **settings: Any) -> TensorRecords | TextRecords:
    """Records of a Parquet file: `from_table`."""
    return from_table(path, **settings)


class NewRecords(NamedTuple):
    """Records without labels: their features, the cells of all other columns as text, and how many
    cells of each column have a category that the model does not know."""

    inputs: Tensor
    others: dict[str, list[str]]
    unknown: dict[str, int]


def new_records(source: Any, columns: Columns) -> NewRecords:
    """The features of a table that need not have labels; columns are matched by name."""
    table = table_of(source)
    refuse_others(table, columns, also=False)
    unknown = {name: column.unknown(table.columns[name]) for name, column in columns.items()}
    others = {name: texts_of(cells) for name, cells in table.columns.items() if name not in columns}
    return NewRecords(
        torch.from_numpy(features_of(table, columns)),
        others,
        {name: count for name, count in unknown.items() if count},
    )


def texts_of(cells: Cells) -> list[str]:
    """The cell of each record as text, unchanged."""
    texts = ["" if value is None else str(value) for value in cells.values]
    return [texts[code] for code in cells.codes]


# ---- Records


def _records(
    table: Table, schema: Schema, columns: Columns | None, budget: Budget | None
) -> TensorRecords | TextRecords:
    _check(table, schema, columns)
    if columns is None:
        resolved = resolve(table, schema, budget)
    else:
        refuse_others(_without_labels(table, schema), columns)
        resolved = resolve_like(columns, table, schema)
    for sentence in resolved.unsafe:
        warnings.warn(f"{table.place}: {sentence}", PrivacyWarning, stacklevel=3)
    assert schema.label is not None
    labels, faults = _labels(table.columns[schema.label], schema.label, resolved.classes)
    marks: Any = {
        **{"name": table.stem, "classes": resolved.classes},
        **{"unsafe": resolved.unsafe, "released": resolved.ledger},
    }
    if schema.text is not None:
        return _of_texts(table, schema.text, labels, faults, marks)
    features = features_of(table, resolved.columns, faults)
    inputs, numbers = torch.from_numpy(features), torch.from_numpy(labels)
    return TensorRecords(inputs, numbers, columns=resolved.columns, **marks)


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
        count = cells.count(empty)
        records = record_numbers(cells.records_with(empty), count)
        faults.append(f"{name}: {_count(count, 'text')} missing, in {records}")
    refuse(table, faults)
    pairs = zip(texts_of(cells), labels.tolist(), strict=True)
    return TextRecords([{"text": text, "label": label} for text, label in pairs], **marks)


def _labels(cells: Cells, name: str, classes: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """The number of the class of each record, and what is wrong with the labels."""
    places = {text: place for place, text in enumerate(classes)}
    numbers = np.array([places.get(text, -1) for text in cells.texts()], np.int64)
    faults = []
    missing = cells.missing() & (numbers < 0)
    unknown = (numbers < 0) & ~missing
    if missing.any():
        count, records = cells.count(missing), cells.records_with(missing)
        faults.append(
            f"{name}: {_count(count, 'label')} empty, in {record_numbers(records, count)}"
        )
    if unknown.any():
        count, records = cells.count(unknown), cells.records_with(unknown)
        examples = quoted(cells.texts()[cells.codes[number]] for number in records)
        faults.append(
            f"{name}: {_count(count, 'label')} not among the classes ({', '.join(classes)}): "
            f"{examples} in {record_numbers(records, count)}"
        )
    return numbers[cells.codes], faults


def _count(number: int, noun: str) -> str:
    return f"1 {noun} is" if number == 1 else f"{number:,} {noun}s are"


def _check(table: Table, schema: Schema, columns: Columns | None) -> None:
    if schema.label is None:
        raise ValueError(
            f"{table.place} is a table: state which column holds the classes (label). Its columns: "
            f"{', '.join(table.columns)}."
        )
    needed = [schema.label] if columns is not None else schema.mentioned
    needed += [schema.text] if schema.text is not None else []
    absent = [name for name in dict.fromkeys(needed) if name not in table.columns]
    if absent:
        raise ValueError(
            f"{table.place} has no column {quoted(absent)}. Its columns: "
            f"{', '.join(table.columns) or 'none'}."
        )
    if not table.num_records:
        raise DataNotFound(f"{table.place} has no records.")
    if schema.text is None and not features_named(table, schema):
        raise ValueError(
            f"{table.place} has no columns besides {schema.label!r} and the ignored ones, so "
            "there is nothing to learn from."
        )
    if schema.text is not None and (schema.described or columns is not None):
        raise ValueError(
            "ranges, dates, categories, missing and columns cannot be combined with text: records "
            "of text have no other features."
        )
