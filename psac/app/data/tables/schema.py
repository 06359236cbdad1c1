"""What you state about a table: in a schema file, in `data_settings` or in `from_table`.

    label = "back"                  the column of the classes
    classes = ["no", "yes"]
    text = "note"                   the column of text, for records of text
    ignore = ["patient_id"]         columns to leave out
    ranges.age = [0, 120]           numbers; "private" releases the range with noise;
                                    ranges = "private" does so for all columns not named otherwise
    dates.admitted = ["2015-01-01", "2026-01-01"]      and a strptime format, if not ISO 8601
    categories.ward = ["A", "B"]    or "private", as for ranges
    missing.age = "indicator"       or a constant; missing = "indicator" is for every column
    unconfirmed = ["age"]           columns whose values were read off the records
    unsafe = true                   read what is not stated off the records, and say so everywhere

A schema states public facts.  A column that is still `unconfirmed` is refused, or reported if
`unsafe` allows it.

>>> schema = Schema(label="back", ranges={"age": [0, 120]}, missing="indicator")
>>> schema.kind("age"), schema.missing_of("age")
('number', 'indicator')
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psac.app.data.tables.cells import days_of, quoted, text_of
from psac.app.data.tables.columns import CATEGORIES, DATE, INDICATOR, NUMBER
from psac.app.toml import read
from psac.checks import unknown

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
                f"missing is {self.missing!r}: pass {INDICATOR!r}, or a value for each column."
            )
        missing: Any = self.missing
        if not isinstance(missing, (str, Mapping)):
            raise TypeError(f"missing is {self.missing!r}: pass a value for each column.")
        for name in ("ignore", "unconfirmed", "classes"):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, (Sequence, type(None))):
                raise TypeError(f"{name} is {value!r}: pass a list.")
        unsafe: Any = self.unsafe
        if not isinstance(unsafe, bool):
            raise TypeError(f"unsafe is {self.unsafe!r}: pass true or false.")
        self._check_once()
        for name in (*self.named(NUMBER), *self.named(DATE)):
            self.range_of(name)
        for name in self.named(CATEGORIES):
            self.categories_of(name)
        for name in () if isinstance(self.missing, str) else self.missing:
            kind = self.kind(name)
            known = self.categories_of(name) if kind == CATEGORIES else None
            check_missing(name, self.missing_of(name), kind, known, self.form(name))

    def _check_once(self) -> None:
        others = [self.label, self.text, *self.ignore]
        for name in {*self.stated_columns(), *filter(None, others)}:
            places = [key for key in KINDS if name in _named(getattr(self, key))]
            places += [key for key in ("label", "text") if getattr(self, key) == name]
            places += ["ignore"] * (name in self.ignore)
            if len(places) > 1:
                raise ValueError(
                    f"column {name!r} is listed under {' and '.join(places)}. List it once."
                )
        wide = [key for key in KINDS if getattr(self, key) == PRIVATE]
        if len(wide) > 1:
            raise ValueError(
                f"{' and '.join(wide)} are both {PRIVATE!r}, but only one of them can apply to "
                "all columns that are not named. Name the columns of the other."
            )

    def stated_columns(self) -> list[str]:
        """All columns that are named as numbers, dates or categories."""
        return [name for key in KINDS for name in _named(getattr(self, key))]

    def named(self, kind: str) -> list[str]:
        return [name for key in KINDS if KINDS[key] == kind for name in _named(getattr(self, key))]

    def kind(self, column: str) -> str | None:
        """The stated kind of the column, or None."""
        for key, kind in KINDS.items():
            if column in _named(getattr(self, key)):
                return kind
        return next((kind for key, kind in KINDS.items() if getattr(self, key) == PRIVATE), None)

    def is_private(self, column: str) -> bool:
        """Whether the range or the categories of the column are to be released with noise."""
        kind = self.kind(column)
        setting = next((getattr(self, key) for key in KINDS if KINDS[key] == kind), {})
        named = _named(setting)
        return named[column] == PRIVATE if column in named else setting == PRIVATE

    @property
    def asks_for_noise(self) -> bool:
        settings = [getattr(self, key) for key in KINDS]
        values = [value for each in settings for value in (each, *_named(each).values())]
        return any(isinstance(value, str) and value == PRIVATE for value in values)

    def form(self, column: str) -> str:
        """The strptime format of its dates; empty for ISO 8601."""
        value = _named(self.dates).get(column)
        return str(value[2]) if isinstance(value, (list, tuple)) and len(value) == 3 else ""

    def range_of(self, column: str) -> tuple[float, float] | None:
        """The lowest and the highest value; None if they are released with noise."""
        if self.is_private(column):
            return None
        if self.kind(column) == DATE:
            return _dates(column, _named(self.dates)[column])
        return _range(column, _named(self.ranges)[column])

    def categories_of(self, column: str) -> tuple[str, ...] | None:
        if self.is_private(column):
            return None
        value = _named(self.categories)[column]
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            raise ValueError(f"categories[{column!r}] is {value!r}: pass a list, or {PRIVATE!r}.")
        names = tuple(map(text_of, value))
        if len(set(names)) < len(names):
            raise ValueError(f"categories[{column!r}] has a category twice: {', '.join(names)}.")
        return names

    def missing_of(self, column: str) -> str | float | None:
        if isinstance(self.missing, str):
            return INDICATOR
        value = self.missing.get(column)
        return value.isoformat() if isinstance(value, datetime.date) else value

    @property
    def described(self) -> bool:
        """Whether anything is stated about columns of features."""
        return bool(self.ranges or self.dates or self.categories or self.missing)

    @property
    def mentioned(self) -> list[str]:
        """Every column that must be in the table."""
        missing = [] if isinstance(self.missing, str) else list(self.missing)
        names = [self.label, self.text, *self.stated_columns(), *missing]
        return [name for name in names if name is not None]


KEYS = [field.name for field in dataclasses.fields(Schema)]


def schema_of(settings: Mapping[str, Any]) -> Schema:
    """The schema of these settings, of which `schema` may be a file."""
    keys = {name: value for name, value in inlined(settings).items() if value is not None}
    for name in keys:
        if name not in KEYS:
            raise ValueError(unknown("schema key", name, KEYS))
    return Schema(**keys)


def inlined(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the content of the file `schema` in its place; other settings win."""
    own = dict(settings)
    source = own.pop("schema", None)
    if source is None:
        return own
    content = source if isinstance(source, Mapping) else read(Path(source).expanduser())
    joined = {**content, **own}
    for name, value in own.items():
        if isinstance(value, Mapping) and isinstance(content.get(name), Mapping):
            joined[name] = {**content[name], **value}
    return joined


def _named(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _check_columns(name: str, value: Any) -> None:
    if value != PRIVATE and not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r}: pass a value for each column, or {PRIVATE!r}.")


def _range(column: str, value: Any) -> tuple[float, float]:
    pair = value if isinstance(value, (list, tuple)) and len(value) == 2 else ()
    ends = [float(end) for end in pair if isinstance(end, numbers.Real)]
    if len(ends) != 2 or not all(map(math.isfinite, ends)) or not ends[0] < ends[1]:
        raise ValueError(
            f"ranges[{column!r}] is {value!r}: pass (lowest, highest), or {PRIVATE!r}."
        )
    return ends[0], ends[1]


def _dates(column: str, value: Any) -> tuple[float, float]:
    try:
        low, high = (days_of(end) for end in value[:2])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_wrong_dates(column, value)} ({error})") from error
    if len(value) > 3 or not low < high:
        raise ValueError(_wrong_dates(column, value))
    return low, high


def _wrong_dates(column: str, value: Any) -> str:
    return (
        f"dates[{column!r}] is {value!r}: pass the first and the last date, such as "
        "['2015-01-01', '2026-01-01'], and a strptime format if the table has another one."
    )


def check_missing(
    column: str, value: Any, kind: str | None, categories: Sequence[str] | None, form: str
) -> None:
    """Raises if the constant does not fit the column; kind and categories may be unknown yet."""
    if value is None or value == INDICATOR or kind is None:
        return
    what = {NUMBER: "a number", DATE: f"a date {form or 'such as 2020-01-01'}"}.get(
        kind, "a category"
    )
    try:
        if kind == CATEGORIES:
            fits = categories is None or str(value) in categories
        else:
            fits = math.isfinite(float(value) if kind == NUMBER else days_of(value, form))
    except (ValueError, TypeError):
        fits = False
    if not fits:
        names = f" of {', '.join(categories)}" if categories else ""
        raise ValueError(
            f"missing[{column!r}] is {value!r}: pass {INDICATOR!r}, or {what}{names} that replaces "
            "empty cells."
        )


def unconfirmed_refused(schema: Schema, place: str) -> None:
    """Raises if values that were read off the records have not been confirmed."""
    if schema.unconfirmed and not schema.unsafe:
        raise ValueError(
            f"{place}: the schema lists {quoted(schema.unconfirmed)} as unconfirmed, because their "
            "values were read off the private records. Confirm that each is public "
            "knowledge or replace it, and remove the column from the list. Or set unsafe = true: "
            "then every report says what was not private."
        )
