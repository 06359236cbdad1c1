"""What the user says of a table: the keys of a schema file, of `data_settings`, of `from_table`.

    label = "back"                  the column of the classes
    classes = ["no", "yes"]
    text = "note"                   the column of text, for records of text
    ignore = ["patient_id"]         columns that are left out
    ranges.age = [0, 120]           numbers; "private": released with noise; ranges = "private": of
                                    every column that is not named otherwise
    dates.admitted = ["2015-01-01", "2026-01-01"]      and a form of strptime where not ISO 8601
    categories.ward = ["A", "B"]    likewise "private"
    missing.age = "indicator"       or a constant; missing = "indicator": of every column
    unconfirmed = ["age"]           columns whose values were read off the records
    unsafe = true                   what is not stated may be read off the records

A schema is a statement of public facts.  What was read off private records and is still listed as
`unconfirmed` is none: it is refused, or reported where `unsafe` allows it.

>>> schema = Schema(label="back", ranges={"age": [0, 120]}, missing="indicator")
>>> schema.kind("age"), schema.missing_of("age")
('number', 'indicator')
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import math
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psac.app.data.cells import days_of, quoted, text_of
from psac.app.data.columns import CATEGORIES, DATE, INDICATOR, NUMBER
from psac.app.data.toml import read

PRIVATE = "private"
KINDS = {"ranges": NUMBER, "dates": DATE, "categories": CATEGORIES}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    label: str | None = None
    text: str | None = None
    classes: Sequence[Any] | None = None
    ranges: Mapping[str, Any] | str = dataclasses.field(default_factory=dict)
    dates: Mapping[str, Any] | str = dataclasses.field(default_factory=dict)
    categories: Mapping[str, Any] | str = dataclasses.field(default_factory=dict)
    missing: Mapping[str, Any] | str = dataclasses.field(default_factory=dict)
    ignore: Sequence[str] = ()
    unconfirmed: Sequence[str] = ()
    unsafe: bool = False

    def __post_init__(self) -> None:
        for name in KINDS:
            _check_columns(name, getattr(self, name))
        if isinstance(self.missing, str) and self.missing != INDICATOR:
            raise ValueError(
                f"missing is {self.missing!r}: give {INDICATOR!r}, or a value for each column."
            )
        missing: Any = self.missing
        if not isinstance(missing, (str, Mapping)):
            raise TypeError(f"missing is {self.missing!r}: give a value for each column.")
        for name in ("ignore", "unconfirmed", "classes"):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, (Sequence, type(None))):
                raise TypeError(f"{name} is {value!r}: give a list.")
        unsafe: Any = self.unsafe
        if not isinstance(unsafe, bool):
            raise TypeError(f"unsafe is {self.unsafe!r}: give true or false.")
        self._check_once()
        for name in (*self.named(NUMBER), *self.named(DATE)):
            self.range_of(name)
        for name in self.named(CATEGORIES):
            self.categories_of(name)

    def _check_once(self) -> None:
        others = [self.label, self.text, *self.ignore]
        for name in {*self.ranges_of_all(), *filter(None, others)}:
            places = [key for key in KINDS if name in _named(getattr(self, key))]
            places += [key for key in ("label", "text") if getattr(self, key) == name]
            places += ["ignore"] * (name in self.ignore)
            if len(places) > 1:
                raise ValueError(f"column {name!r} is given as {' and as '.join(places)}: choose.")
        wide = [key for key in KINDS if getattr(self, key) == PRIVATE]
        if len(wide) > 1:
            raise ValueError(
                f"{' and '.join(wide)} are both {PRIVATE!r}: only one of them can be that of all "
                "columns that are not named. Name the columns of the other."
            )

    def ranges_of_all(self) -> list[str]:
        """All columns that are named as numbers, dates or categories."""
        return [name for key in KINDS for name in _named(getattr(self, key))]

    def named(self, kind: str) -> list[str]:
        return [name for key in KINDS if KINDS[key] == kind for name in _named(getattr(self, key))]

    def kind(self, column: str) -> str | None:
        """What the column is said to be, or None."""
        for key, kind in KINDS.items():
            if column in _named(getattr(self, key)):
                return kind
        return next((kind for key, kind in KINDS.items() if getattr(self, key) == PRIVATE), None)

    def is_private(self, column: str) -> bool:
        """Whether its range or categories are to be released with noise."""
        kind = self.kind(column)
        given = next((getattr(self, key) for key in KINDS if KINDS[key] == kind), {})
        named = _named(given)
        return named[column] == PRIVATE if column in named else given == PRIVATE

    @property
    def asks_for_noise(self) -> bool:
        given = [getattr(self, key) for key in KINDS]
        return any(
            each == PRIVATE or PRIVATE in map(_plain, _named(each).values()) for each in given
        )

    def form(self, column: str) -> str:
        """How its dates are written, where not as in ISO 8601."""
        given = _named(self.dates).get(column)
        return str(given[2]) if isinstance(given, (list, tuple)) and len(given) == 3 else ""

    def range_of(self, column: str) -> tuple[float, float] | None:
        """The lowest and the highest value; None where it is released with noise."""
        if self.is_private(column):
            return None
        if self.kind(column) == DATE:
            return _dates(column, _named(self.dates)[column])
        return _range(column, _named(self.ranges)[column])

    def categories_of(self, column: str) -> tuple[str, ...] | None:
        if self.is_private(column):
            return None
        given = _named(self.categories)[column]
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise ValueError(f"categories[{column!r}] is {given!r}: give a list, or {PRIVATE!r}.")
        found = tuple(map(text_of, given))
        if len(set(found)) < len(found):
            raise ValueError(f"categories[{column!r}] has a category twice: {', '.join(found)}.")
        return found

    def missing_of(self, column: str) -> str | float | None:
        if isinstance(self.missing, str):
            return INDICATOR
        given = self.missing.get(column)
        if isinstance(given, (datetime.date, datetime.datetime)):
            return given.isoformat()
        return given

    @property
    def described(self) -> bool:
        """Whether anything is said of columns of features."""
        return bool(self.ranges or self.dates or self.categories or self.missing)

    @property
    def mentioned(self) -> list[str]:
        """Every column that must be in the table."""
        missing = [] if isinstance(self.missing, str) else list(self.missing)
        found = [self.label, self.text, *self.ranges_of_all(), *missing]
        return [name for name in found if name is not None]


KEYS = [field.name for field in dataclasses.fields(Schema)]


def schema_of(settings: Mapping[str, Any]) -> Schema:
    """The schema of these keys, which may name a file by `schema`."""
    given = {name: value for name, value in inlined(settings).items() if value is not None}
    for name in given:
        if name not in KEYS:
            close = difflib.get_close_matches(name, KEYS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise ValueError(f"'{name}' is no key of a schema. Known: {', '.join(KEYS)}.{hint}")
    return Schema(**given)


def inlined(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the content of the file `schema` in its place; what is given here wins."""
    given = dict(settings)
    source = given.pop("schema", None)
    if source is None:
        return given
    held = source if isinstance(source, Mapping) else read(Path(source).expanduser())
    joined = {**held, **given}
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(held.get(name), Mapping):
            joined[name] = {**held[name], **value}
    return joined


def _named(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else None


def _check_columns(name: str, given: Any) -> None:
    if given != PRIVATE and not isinstance(given, Mapping):
        raise TypeError(f"{name} is {given!r}: give a value for each column, or {PRIVATE!r}.")


def _range(column: str, given: Any) -> tuple[float, float]:
    pair = given if isinstance(given, (list, tuple)) and len(given) == 2 else ()
    ends = [float(end) for end in pair if isinstance(end, numbers.Real)]
    if len(ends) != 2 or not all(map(math.isfinite, ends)) or not ends[0] < ends[1]:
        raise ValueError(
            f"ranges[{column!r}] is {given!r}: pass (lowest, highest), or {PRIVATE!r}."
        )
    return ends[0], ends[1]


def _dates(column: str, given: Any) -> tuple[float, float]:
    try:
        low, high = (days_of(end) for end in given[:2])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_wrong_dates(column, given)} ({error})") from error
    if len(given) > 3 or not low < high:
        raise ValueError(_wrong_dates(column, given))
    return low, high


def _wrong_dates(column: str, given: Any) -> str:
    return (
        f"dates[{column!r}] is {given!r}: pass the first and the last date, such as "
        f"['2015-01-01', '2026-01-01'], and the form of strptime if they are not written so."
    )


def unconfirmed_refused(schema: Schema, place: str) -> None:
    """Raises if the schema still holds what was read off the records."""
    if schema.unconfirmed and not schema.unsafe:
        raise ValueError(
            f"{place}: the schema says that values of {quoted(schema.unconfirmed)} were read off "
            "the private records (unconfirmed). Confirm that each is public, or replace it, and "
            "take the column off that list. Or set unsafe = true: then every page and card says "
            "what was not private."
        )
