"""A column of a table: its different values, and which of them each record has.

Whatever is asked of a column is asked of its different values, once each.  Guarantees: numbers and
dates are read strictly; what is neither missing nor readable is bad, and never becomes something
else.  What counts as missing is a public list, `MISSING`.

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


class Read(NamedTuple):
    """One entry for each different value."""

    values: np.ndarray
    missing: np.ndarray
    bad: np.ndarray


class Cells:
    """`values` are the different ones in the order in which they first come."""

    def __init__(self, values: list[Any], codes: np.ndarray) -> None:
        self.values, self.codes = values, codes

    @classmethod
    def of(cls, cells: Sequence[Any]) -> Cells:
        growing = Growing()
        growing.add(cells)
        return growing.cells()

    def __len__(self) -> int:
        return len(self.codes)

    def counts(self) -> np.ndarray:
        """How many records have each value."""
        return np.bincount(self.codes, minlength=len(self.values))

    def texts(self) -> list[str]:
        return [text_of(value) for value in self.values]

    def missing(self) -> np.ndarray:
        return np.array([is_missing(value) for value in self.values], bool)

    def numbers(self) -> Read:
        """What is not finite is bad."""
        return self._read(_all_numbers, _number)

    def days(self, form: str = "") -> Read:
        """Dates as days since 1970, written as in ISO 8601 or in this form of `strptime`."""
        return self._read(lambda _: None, lambda value: _days(value, form))

    def _read(
        self,
        all_at_once: Callable[[list[Any]], np.ndarray | None],
        one: Callable[[Any], float],
    ) -> Read:
        """`all_at_once` gives None where `one` has to look at each value."""
        found = all_at_once(self.values)
        if found is not None:
            return Read(found, np.zeros(len(found), bool), np.zeros(len(found), bool))
        missing = self.missing()
        pairs = zip(self.values, missing, strict=True)
        numbers = np.array([math.nan if gone else one(value) for value, gone in pairs], float)
        return Read(numbers, missing, np.isnan(numbers) & ~missing)

    def records_with(self, chosen: np.ndarray, limit: int = 3) -> list[int]:
        """The first records, counted from 0, that have one of the chosen values."""
        return np.flatnonzero(chosen[self.codes])[:limit].tolist()


class Growing:
    """A column that is read part by part, of which only the different values are kept."""

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
    """As it would stand in a CSV file; whole floats without a point.

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
        found = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if np.isfinite(found).all() else None


def _number(value: Any) -> float:
    """Not a number for what is none, or not finite."""
    try:
        found = float(value)
    except (ValueError, TypeError, OverflowError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def _days(value: Any, form: str) -> float:
    try:
        return days_of(value, form)
    except (ValueError, TypeError, OverflowError):
        return math.nan


def days_of(value: Any, form: str = "") -> float:
    """A date or time as days since 1970; raises ValueError or TypeError for what is none.

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
        raise TypeError(f"{value!r} is no date.")
    if value.tzinfo is not None:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return (value - EPOCH).total_seconds() / DAY


def date_of(days: float) -> str:
    """The date as ISO 8601.

    >>> date_of(1.0)
    '1970-01-02'
    """
    return (EPOCH + datetime.timedelta(days=days)).date().isoformat()


def quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
