"""The user's own tables: a CSV or Parquet file with a column of labels.

With `text`, a record is {"text": ..., "label": ...} of these two columns.  Without it, all other
columns become one vector of float32: a column of numbers is one feature, scaled to [0, 1] and
clamped where `ranges` gives its bounds, and left as it is elsewhere; any other column is one-hot.

What a feature is must not depend on who is in the table.  So:

- Bounds come from `ranges`, never from the records: no mean, no maximum is computed.
- Categories come from `categories`; a value that is not among them is all zeros.  Where none are
  given they are read off the records, with a `PrivacyWarning`: that a value occurs is then told to
  anyone who sees the shape of the model.
- The classes are taken to be public.  Without `classes` they are the labels that occur, sorted.

Records that belong together have the same columns, by their names (`psac.data.columns`): a second
table, read with `columns=first.columns`, has the features of the first in their order, whatever the
order in the file, and is refused if a column is missing or unknown.
"""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from psac.accounting import PrivacyWarning
from psac.data.columns import CATEGORIES, NUMBER, Columns, in_order
from psac.data.entry import DataNotFound
from psac.data.optional import needed
from psac.data.records import TensorRecords, TextRecords

Ranges = Mapping[str, tuple[float, float]]
Categories = Mapping[str, Sequence[str]]


def from_csv(
    path: str | os.PathLike[str],
    *,
    label: str,
    text: str | None = None,
    classes: Sequence[str] | None = None,
    ranges: Ranges | None = None,
    categories: Categories | None = None,
    columns: Columns | None = None,
) -> TensorRecords | TextRecords:
    """Records of a CSV file in UTF-8, whose first line names the columns.

    `columns` are those of records that these must be like, such as `train.columns` for a test.
    """
    table = _csv_table(Path(path).expanduser())
    return _records(table, label, text, classes, ranges or {}, categories or {}, columns)


def from_parquet(
    path: str | os.PathLike[str],
    *,
    label: str,
    text: str | None = None,
    classes: Sequence[str] | None = None,
    ranges: Ranges | None = None,
    categories: Categories | None = None,
    columns: Columns | None = None,
) -> TensorRecords | TextRecords:
    """Records of a Parquet file, by pyarrow (the extra `data`); else as `from_csv`."""
    table = _parquet_table(Path(path).expanduser())
    return _records(table, label, text, classes, ranges or {}, categories or {}, columns)


def inputs_from_table(
    path: str | os.PathLike[str],
    *,
    label: str,
    ranges: Ranges | None = None,
    categories: Categories | None = None,
    columns: Columns | None = None,
) -> Tensor:
    """The features of a CSV or Parquet file that need not have the column of labels.

    `columns` are those that were learned.  Without them the file's are taken by their position, and
    only those with a range or categories can be told to be missing.  Categories are not read off
    these records: they could be others than those that were learned.
    """
    table = _table(Path(path).expanduser())
    table.columns.pop(label, None)
    _refuse_without(table, [*(ranges or {}), *(categories or {})] if columns is None else [])
    return _inputs(table, ranges or {}, categories or {}, columns, found_ones=False)[0]


def column_names(path: str | os.PathLike[str]) -> list[str]:
    """Those of a CSV or Parquet file."""
    return list(_table(Path(path).expanduser()).columns)


class _Table(NamedTuple):
    file: Path
    columns: dict[str, list[Any]]

    def column(self, name: str) -> list[Any]:
        """Its values, none of which is missing."""
        for number, value in enumerate(self.columns[name], start=1):
            if value is None or value == "":
                raise ValueError(
                    f"{self.file}, column {name!r}: record {number} is empty. Fill it in or drop "
                    "it."
                )
        return self.columns[name]


# ---- Files


def _csv_table(file: Path) -> _Table:
    _refuse_missing(file)
    try:
        with open(file, newline="", encoding="utf-8-sig") as lines:
            header, *rows = [row for row in csv.reader(lines) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataNotFound(f"{file} cannot be read as CSV in UTF-8 ({error}).") from error
    if not header:
        raise DataNotFound(f"{file} holds no records, and no line that names the columns.")
    _refuse_other_separators(file, header)
    if len(set(header)) < len(header):
        raise ValueError(f"{file} names a column twice: {', '.join(header)}. Rename one of them.")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(
                f"{file}: record {number} has {len(row)} fields, the header {len(header)}. Mend or "
                "remove it."
            )
    return _Table(file, {name: [row[place] for row in rows] for place, name in enumerate(header)})


def _refuse_other_separators(file: Path, header: list[str]) -> None:
    """They are not guessed: where columns end with semicolons, numbers often have commas."""
    for mark, what in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            raise ValueError(
                f"{file} has {what} between its columns ({header[0]!r}). Save it with commas, and "
                "with points in its numbers."
            )


def _table(file: Path) -> _Table:
    return _parquet_table(file) if file.suffix.lower() == ".parquet" else _csv_table(file)


def _parquet_table(file: Path) -> _Table:
    parquet = needed("pyarrow.parquet", package="pyarrow", purpose="Reading Parquet")
    _refuse_missing(file)
    try:
        return _Table(file, parquet.read_table(file).to_pydict())
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise DataNotFound(f"{file} cannot be read as Parquet ({error}).") from error


def _refuse_missing(file: Path) -> None:
    if not file.is_file():
        raise DataNotFound(f"there is no file {file}.")


# ---- Records


def _records(
    table: _Table,
    label: str,
    text: str | None,
    classes: Sequence[str] | None,
    ranges: Ranges,
    categories: Categories,
    columns: Columns | None,
) -> TensorRecords | TextRecords:
    _check(table, label, text, ranges, categories, columns)
    numbers, names = _labels(table, label, classes)
    if text is not None:
        pairs = zip(map(str, table.column(text)), numbers, strict=True)
        records = [{"text": value, "label": number} for value, number in pairs]
        return TextRecords(records, name=table.file.stem, classes=names)
    del table.columns[label]
    inputs, kinds = _inputs(table, ranges, categories, columns, found_ones=columns is None)
    return TensorRecords(
        inputs, torch.tensor(numbers), name=table.file.stem, classes=names, columns=kinds
    )


def _inputs(
    table: _Table,
    ranges: Ranges,
    categories: Categories,
    columns: Columns | None,
    *,
    found_ones: bool,
) -> tuple[Tensor, Columns]:
    """One vector for each record, and the kinds of the columns in their order.

    `found_ones` allows categories that are read off the records.
    """
    if columns is None:
        columns = {name: _kind(table, name, ranges, categories) for name in table.columns}
        reason = "It has no numbers: it was left out of the training data, or had others there."
    else:
        table = _Table(table.file, in_order(table.columns, columns, table.file))
        reason = "Those that were read off the training data are not kept: train with a list."
    features = []
    for name, kind in columns.items():
        if kind == CATEGORIES and name not in categories and not found_ones:
            raise ValueError(
                f"{table.file}, column {name!r}: its categories are not given "
                f"(data_settings.categories). {reason}"
            )
        if kind == NUMBER and name in categories:
            raise ValueError(
                f"{table.file}, column {name!r}: categories are given, but it had numbers in the "
                "training data. Give them for both or for none."
            )
        features.append(_feature(table, name, kind, ranges, categories))
    return torch.from_numpy(np.concatenate(features, axis=1)), dict(columns)


def _kind(table: _Table, name: str, ranges: Ranges, categories: Categories) -> str:
    if name in categories:
        return CATEGORIES
    return NUMBER if name in ranges or _as_numbers(table.column(name)) is not None else CATEGORIES


def _as_numbers(values: Any) -> np.ndarray | None:
    try:
        return np.array(values, np.float64)
    except (ValueError, TypeError):
        return None


def _check(
    table: _Table,
    label: str,
    text: str | None,
    ranges: Ranges,
    categories: Categories,
    columns: Columns | None,
) -> None:
    _refuse_without(table, [label, *([] if text is None else [text])])
    if columns is None:  # else all that is missing is said at once
        _refuse_without(table, [*ranges, *categories])
    if not table.columns[label]:
        raise DataNotFound(f"{table.file} holds no records.")
    if len(table.columns) == 1:
        raise ValueError(f"{table.file} has only the column {label!r}: there is nothing to learn.")
    if text is not None and (ranges or categories or columns):
        raise ValueError("ranges, categories and columns are for tables without a column of text.")
    for name, (low, high) in ranges.items():
        if not low < high:
            raise ValueError(f"ranges[{name!r}] is {(low, high)}: pass (lowest, highest).")


def _refuse_without(table: _Table, names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in table.columns]:
        raise ValueError(
            f"{table.file} has no column {', '.join(map(repr, missing))}. It has: "
            f"{', '.join(table.columns) or 'none'}."
        )


def _labels(
    table: _Table, label: str, classes: Sequence[str] | None
) -> tuple[list[int], list[str]]:
    given = list(map(str, table.column(label)))
    names = list(map(str, classes)) if classes is not None else sorted(set(given), key=_numerically)
    place = {name: number for number, name in enumerate(names)}
    if unknown := sorted(set(given) - place.keys()):
        raise ValueError(
            f"{table.file}, column {label!r}: {unknown[0]!r} is not among the classes "
            f"{', '.join(names)}."
        )
    return [place[value] for value in given], names


def _numerically(value: str) -> tuple[float, str]:
    """Numbers by their size, before all else by the alphabet."""
    try:
        return float(value), value
    except ValueError:
        return float("inf"), value


def _feature(
    table: _Table, name: str, kind: str, ranges: Ranges, categories: Categories
) -> np.ndarray:
    if kind == CATEGORIES:
        if name in categories:
            return _one_hot(table.columns[name], list(map(str, categories[name])))
        return _one_hot(table.column(name), _categories_found(table, name))
    numbers = _numbers(table, name, ranges)
    if name in ranges:
        low, high = ranges[name]
        numbers = np.clip((numbers - low) / (high - low), 0, 1)
    return numbers.astype(np.float32)[:, None]


def _numbers(table: _Table, name: str, ranges: Ranges) -> np.ndarray:
    values = table.column(name)
    numbers = _as_numbers(values)
    if numbers is None:
        bad = next(place for place, value in enumerate(values) if _as_numbers(value) is None)
        expected = "has a range" if name in ranges else "had numbers in the training data"
        raise ValueError(
            f"{table.file}, column {name!r} {expected}, but record {bad + 1} is {values[bad]!r}, "
            "which is no number. Mend or remove it."
        )
    if not np.isfinite(numbers).all():
        bad = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ValueError(
            f"{table.file}, column {name!r}: record {bad + 1} is {values[bad]!r}, which is not "
            "finite. Fill it in or drop it."
        )
    return numbers


def _categories_found(table: _Table, name: str) -> list[str]:
    found = sorted({str(value) for value in table.columns[name]})
    warnings.warn(
        f"{table.file}, column {name!r}: its {len(found)} categories were read off the records. "
        f"That a value occurs is then not private: pass categories={{{name!r}: [...]}}, a list "
        "that was known before.",
        PrivacyWarning,
        stacklevel=6,
    )
    return found


def _one_hot(values: list[Any], known: list[str]) -> np.ndarray:
    place = {value: number for number, value in enumerate(known)}
    rows = np.eye(len(known) + 1, dtype=np.float32)[:, : len(known)]
    return rows[[place.get(str(value), len(known)) for value in values]]
