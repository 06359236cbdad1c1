"""A column of a table: its distinct values, and which of them each record has.

Every value is parsed once, however many records have it.  Guarantees: numbers and dates are parsed
strictly; a cell that is neither missing nor readable is bad and never becomes a feature.  `MISSING`
is the public list of what counts as missing.

>>> column = Cells.of(["12", "", "12o"])
>>> values, missing, bad = column.numbers()
>>> values.tolist(), missing.tolist(), bad.tolist()
([12.0, nan, nan], [False, True, False], [False, False, True])
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

MISSING = frozenset(("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "?"))
DAY = 86_400.0
EPOCH = datetime.datetime(1970, 1, 1)


class Parsed(NamedTuple):
    """One entry for each distinct value."""

    values: np.ndarray
    missing: np.ndarray
    bad: np.ndarray


class Cells:
    """`values` are the distinct ones, in order of first occurrence; `codes` has one per record."""

    def __init__(self, values: list[Any], codes: np.ndarray) -> None:
        self.values, self.codes = values, codes

    @classmethod
    def of(cls, cells: Sequence[Any]) -> Cells:
        builder = CellsBuilder()
        builder.add(cells)
        return builder.cells()

    def __len__(self) -> int:
        return len(self.codes)

    def counts(self) -> np.ndarray:
        """How many records have each value."""
        return np.bincount(self.codes, minlength=len(self.values))

    def texts(self) -> list[str]:
        return [text_of(value) for value in self.values]

    def missing(self) -> np.ndarray:
        return np.array([is_missing(value) for value in self.values], bool)

    def numbers(self) -> Parsed:
        """The values as numbers; infinite ones are bad."""
        return self._parse(_all_numbers, _number)

    def days(self, form: str = "") -> Parsed:
        """The values as days since 1970, from ISO 8601 or from this `strptime` format."""
        return self._parse(lambda _: None, lambda value: _days(value, form))

    def _parse(
        self,
        all_at_once: Callable[[list[Any]], np.ndarray | None],
        one: Callable[[Any], float],
    ) -> Parsed:
        """`all_at_once` returns None if the values must be parsed one by one."""
        numbers = all_at_once(self.values)
        if numbers is not None:
            none = np.zeros(len(numbers), bool)
            return Parsed(numbers, none, none)
        missing = self.missing()
        pairs = zip(self.values, missing, strict=True)
        numbers = np.array([math.nan if gone else one(value) for value, gone in pairs], float)
        return Parsed(numbers, missing, np.isnan(numbers) & ~missing)

    def count(self, mask: np.ndarray) -> int:
        """How many records have one of the values in the mask."""
        return int(mask[self.codes].sum())

    def records_with(self, mask: np.ndarray, limit: int = 3) -> list[int]:
        """The first records, counted from 0, that have one of the values in the mask."""
        return np.flatnonzero(mask[self.codes])[:limit].tolist()


class CellsBuilder:
    """Builds a column part by part; only distinct values take memory."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}
        self._codes: list[np.ndarray] = []

    def add(self, cells: Sequence[Any]) -> None:
        places = self._places
        for value in dict.fromkeys(cells):
            places.setdefault(value, len(places))
        self._codes.append(np.fromiter(map(places.__getitem__, cells), np.int64, len(cells)))

    def cells(self) -> Cells:
        codes = np.concatenate(self._codes) if self._codes else np.zeros(0, np.int64)
        return Cells(list(self._places), codes)


def text_of(value: Any) -> str:
    """The value as in a CSV file; whole floats without a point.

    >>> text_of(1.0), text_of(0.5), text_of(" a "), text_of(None)
    ('1', '0.5', 'a', '')
    """
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def is_missing(value: Any) -> bool:
    return text_of(value) in MISSING


def _all_numbers(values: list[Any]) -> np.ndarray | None:
    try:
        numbers = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def _number(value: Any) -> float:
    """The number; NaN if the value is not a finite number."""
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _days(value: Any, form: str) -> float:
    try:
        return days_of(value, form)
    except (ValueError, TypeError, OverflowError):
        return math.nan


def days_of(value: Any, form: str = "") -> float:
    """A date or time as days since 1970; raises ValueError or TypeError for anything else.

    >>> days_of("1970-01-02"), days_of("1970-01-01T12:00"), days_of("03.01.1970", "%d.%m.%Y")
    (1.0, 0.5, 2.0)
    """
    if isinstance(value, str):
        text = value.strip()
        parse = datetime.datetime.fromisoformat
        value = datetime.datetime.strptime(text, form) if form else parse(text)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime.datetime):
        raise TypeError(f"{value!r} is not a date.")
    if value.tzinfo is not None:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return (value - EPOCH).total_seconds() / DAY


def date_of(days: float) -> str:
    """Days since 1970 as an ISO 8601 date.

    >>> date_of(1.0)
    '1970-01-02'
    """
    return (EPOCH + datetime.timedelta(days=days)).date().isoformat()


def quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
