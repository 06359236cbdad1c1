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
) -> TensorRecords | TextRecords:
    """Records of a CSV file in UTF-8, whose first line names the columns."""
    table = _csv_table(Path(path).expanduser())
    return _records(table, label, text, classes, ranges or {}, categories or {})


def from_parquet(
    path: str | os.PathLike[str],
    *,
    label: str,
    text: str | None = None,
    classes: Sequence[str] | None = None,
    ranges: Ranges | None = None,
    categories: Categories | None = None,
) -> TensorRecords | TextRecords:
    """Records of a Parquet file, by pyarrow (the extra `data`)."""
    table = _parquet_table(Path(path).expanduser())
    return _records(table, label, text, classes, ranges or {}, categories or {})


def inputs_from_table(
    path: str | os.PathLike[str],
    *,
    label: str,
    ranges: Ranges | None = None,
    categories: Categories | None = None,
) -> Tensor:
    """The features of a CSV or Parquet file that need not have the column of labels.

    Categories are not read off these records: they could be others than those that were learned.
    """
    file = Path(path).expanduser()
    table = _parquet_table(file) if file.suffix == ".parquet" else _csv_table(file)
    table.columns.pop(label, None)
    return _inputs(table, ranges or {}, categories or {}, found_ones=False)


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
    if len(set(header)) < len(header):
        raise ValueError(f"{file} names a column twice: {', '.join(header)}. Rename one of them.")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(
                f"{file}: record {number} has {len(row)} fields, the header {len(header)}. Mend or "
                "remove it."
            )
    return _Table(file, {name: [row[place] for row in rows] for place, name in enumerate(header)})


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
) -> TensorRecords | TextRecords:
    _check(table, label, text, ranges, categories)
    numbers, names = _labels(table, label, classes)
    if text is not None:
        pairs = zip(map(str, table.column(text)), numbers, strict=True)
        records = [{"text": value, "label": number} for value, number in pairs]
        return TextRecords(records, name=table.file.stem, classes=names)
    del table.columns[label]
    inputs = _inputs(table, ranges, categories)
    return TensorRecords(inputs, torch.tensor(numbers), name=table.file.stem, classes=names)


def _inputs(
    table: _Table, ranges: Ranges, categories: Categories, *, found_ones: bool = True
) -> Tensor:
    """One vector for each record; `found_ones` allows categories that are read off the records."""
    features = []
    for name in table.columns:
        if not found_ones and name not in categories and not _has_numbers(table, name):
            raise ValueError(
                f"{table.file}, column {name!r} has no numbers, and the run does not say what its "
                f"categories are (data_settings.categories): it was trained without {name!r}, or "
                "with those that its records happened to have."
            )
        features.append(_feature(table, name, ranges, categories))
    return torch.from_numpy(np.concatenate(features, axis=1))


def _has_numbers(table: _Table, name: str) -> bool:
    try:
        np.array(table.column(name), np.float64)
    except (ValueError, TypeError):
        return False
    return True


def _check(
    table: _Table, label: str, text: str | None, ranges: Ranges, categories: Categories
) -> None:
    named = [label, *([] if text is None else [text]), *ranges, *categories]
    if missing := [name for name in named if name not in table.columns]:
        raise ValueError(
            f"{table.file} has no column {', '.join(map(repr, missing))}. It has: "
            f"{', '.join(table.columns) or 'none'}."
        )
    if not table.columns[label]:
        raise DataNotFound(f"{table.file} holds no records.")
    if len(table.columns) == 1:
        raise ValueError(f"{table.file} has only the column {label!r}: there is nothing to learn.")
    if text is not None and (ranges or categories):
        raise ValueError("ranges and categories are for tables without a column of text.")
    for name, (low, high) in ranges.items():
        if not low < high:
            raise ValueError(f"ranges[{name!r}] is {(low, high)}: pass (lowest, highest).")


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


def _feature(table: _Table, name: str, ranges: Ranges, categories: Categories) -> np.ndarray:
    if name in categories:
        return _one_hot(table.columns[name], list(map(str, categories[name])))
    values = table.column(name)
    try:
        numbers = np.array(values, np.float64)
    except (ValueError, TypeError) as error:
        if name in ranges:
            raise ValueError(f"{table.file}, column {name!r} has a range, but {error}.") from error
        return _one_hot(values, _categories_found(table, name))
    if not np.isfinite(numbers).all():
        raise ValueError(f"{table.file}, column {name!r} has numbers that are not finite.")
    if name in ranges:
        low, high = ranges[name]
        numbers = np.clip((numbers - low) / (high - low), 0, 1)
    return numbers.astype(np.float32)[:, None]


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
