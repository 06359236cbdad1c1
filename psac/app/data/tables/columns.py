"""The columns of a table by name, and the features that each becomes.

    number       one feature: (x - low) / (high - low), clamped to [0, 1]
    date         likewise, of days since 1970
    categories   one-hot; a value that is not among them is all zeros

If cells may be missing, `missing` is a constant that replaces them (a number, a date or a category)
or "indicator": one more feature, which is 1 for a missing cell while the others are 0.  In a column
of categories without `missing`, a missing cell is all zeros.

A feature depends on its own cell and on these public constants only.  The columns are stored with
the records and with a trained model (`to_json`, `from_json`).  Guarantees: columns of a second
table are matched by name, in any order, and a missing one is refused; every cell that cannot be
used is counted, and none becomes a feature.

>>> age = Column(kind=NUMBER, range=(0.0, 100.0), missing=INDICATOR)
>>> features, faults = age.features("age", Cells.of(["25", ""]))
>>> features.tolist(), faults
([[0.25, 0.0], [0.0, 1.0]], [])
>>> Column.from_json(age.to_json()) == age
True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psac.app.data.tables.cells import Cells, Parsed, days_of, quoted
from psac.app.data.tables.reader import Table, record_numbers
from psac.app.toml import quoted_key

NUMBER, DATE, CATEGORIES = "number", "date", "categories"
INDICATOR = "indicator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """The `range` of dates is in days; `form` is their `strptime` format, if not ISO 8601."""

    kind: str
    range: tuple[float, float] = (0.0, 1.0)
    categories: tuple[str, ...] = ()
    missing: str | float | None = None
    form: str = ""

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"kind": self.kind}
        if self.kind == CATEGORIES:
            fields["categories"] = list(self.categories)
        else:
            fields["range"] = list(self.range)
        if self.missing is not None:
            fields["missing"] = self.missing
        return fields | ({"form": self.form} if self.form else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Column:
        tuples = {name: tuple(data[name]) for name in ("range", "categories") if name in data}
        return cls(**{**data, **tuples})

    def parse(self, cells: Cells) -> Parsed:
        """Numbers or days; for categories, their places in the list."""
        if self.kind == CATEGORIES:
            places = {name: place for place, name in enumerate(self.categories)}
            codes = np.array([places.get(text, -1) for text in cells.texts()], float)
            return Parsed(codes, cells.missing() & (codes < 0), np.zeros(len(codes), bool))
        return cells.numbers() if self.kind == NUMBER else cells.days(self.form)

    def unknown(self, cells: Cells) -> int:
        """How many cells have a value that is not among the categories."""
        if self.kind != CATEGORIES:
            return 0
        values, missing, _ = self.parse(cells)
        return cells.count((values < 0) & ~missing)

    def features(self, name: str, cells: Cells) -> tuple[np.ndarray, list[str]]:
        """A row for each record, and what is wrong with the cells, in words."""
        parsed = self.parse(cells)
        faults = self.faults(name, cells, parsed)
        values = np.where(parsed.missing, self._replacement(), parsed.values)
        rows = self._rows(np.where(parsed.bad, np.nan, values))
        if self.missing == INDICATOR:
            rows = np.concatenate([rows, parsed.missing.astype(np.float32)[:, None]], axis=1)
        return rows[cells.codes], faults

    def _rows(self, values: np.ndarray) -> np.ndarray:
        """The features of these values; NaN gives zeros."""
        if self.kind == CATEGORIES:
            known = len(self.categories)
            places = np.where(values < 0, known, np.nan_to_num(values, nan=known)).astype(int)
            return np.eye(known + 1, dtype=np.float32)[:, :known][places]
        low, high = self.range
        scaled = np.clip((values - low) / (high - low), 0, 1)
        return np.nan_to_num(scaled, nan=0.0).astype(np.float32)[:, None]

    def _replacement(self) -> float:
        if self.missing is None or self.missing == INDICATOR:
            return np.nan
        if self.kind == CATEGORIES:
            known = str(self.missing) in self.categories  # released with noise, it may not be
            return self.categories.index(str(self.missing)) if known else -1
        return float(self.missing) if self.kind == NUMBER else days_of(self.missing, self.form)

    def faults(self, name: str, cells: Cells, parsed: Parsed) -> list[str]:
        """What is wrong with the cells, in words."""
        faults = []
        if parsed.bad.any():
            count, records = cells.count(parsed.bad), cells.records_with(parsed.bad)
            examples = quoted(cells.texts()[cells.codes[number]] for number in records)
            what = f"not {'numbers' if self.kind == NUMBER else 'dates'}"
            what = f"not a {self.kind}" if count == 1 else what
            faults.append(
                f"{name}: {_cells(count)} {what}: {examples} in {record_numbers(records, count)}"
            )
        if parsed.missing.any() and self.missing is None and self.kind != CATEGORIES:
            count, records = cells.count(parsed.missing), cells.records_with(parsed.missing)
            faults.append(
                f"{name}: {_cells(count)} empty, in {record_numbers(records, count)}; add "
                f'missing.{quoted_key(name)} = "{INDICATOR}", or a constant that replaces them'
            )
        return faults


Columns = Mapping[str, Column]


def _cells(count: int) -> str:
    return "1 cell is" if count == 1 else f"{count:,} cells are"


def features_of(table: Table, columns: Columns, faults: Sequence[str] = ()) -> np.ndarray:
    """A row of features for each record; raises for all cells that cannot be used, at once.

    `faults` are reported with them.
    """
    parts, faults = [], list(faults)
    for name, column in columns.items():
        rows, more = column.features(name, table.columns[name])
        parts.append(rows)
        faults += more
    refuse(table, faults)
    return np.concatenate(parts, axis=1) if parts else np.zeros((table.num_records, 0), np.float32)


def faults_of(table: Table, columns: Columns) -> list[str]:
    """What is wrong with the cells of all columns, in words."""
    pairs = ((name, column, table.columns[name]) for name, column in columns.items())
    return [
        fault
        for name, column, cells in pairs
        for fault in column.faults(name, cells, column.parse(cells))
    ]


def refuse(table: Table, faults: list[str]) -> None:
    """Raises for all faults in one message."""
    if faults:
        lines = "".join(f"\n  {fault}" for fault in faults)
        raise ValueError(f"{table.place} has cells that cannot be used. Correct them:{lines}")


def refuse_others(table: Table, columns: Columns, *, also: bool = True) -> None:
    """Raises if a column is missing, or unknown if `also` is true."""
    content: Any = columns
    if not isinstance(content, Mapping) or not all(
        isinstance(column, Column) for column in content.values()
    ):
        raise ValueError(
            f"columns is {columns!r}: pass those of other records, such as train.columns."
        )
    missing = [name for name in columns if name not in table.columns]
    extra = [name for name in table.columns if name not in columns] if also else []
    if missing or extra:
        parts = [f"{quoted(missing)} missing"] if missing else []
        parts += [f"{quoted(extra)} unknown"] if extra else []
        raise ValueError(
            f"{table.place} does not have the columns of the training data: {', '.join(parts)}. "
            f"Expected, in any order: {', '.join(columns)}."
        )
