"""The columns of a table by their names, and the features that each of them becomes.

    number       one feature: (x - low) / (high - low), clamped to [0, 1]
    date         likewise, of days since 1970
    categories   one-hot; a value that is not among them is all zeros

A column whose cells may be missing has `missing`: a constant that stands in for them (a number, a
date or a category), or "indicator", one more feature that is 1 where the cell is missing, and the
others 0.  In a column of categories a missing cell is all zeros without it.

All is stated here, so that a feature depends on its own cell and on public constants alone.  The
columns are kept with the records and with a trained model: `to_json`, `from_json`.  Guarantees: the
columns of a second table are found by their names, in any order, and one that is missing is
refused; every cell that cannot be used is counted, none becomes a feature.

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

from psac.app.data.cells import Cells, Read, days_of, quoted
from psac.app.data.reading import Table, record_numbers
from psac.app.data.toml import key

NUMBER, DATE, CATEGORIES = "number", "date", "categories"
INDICATOR = "indicator"
NAMES = {NUMBER: "numbers", DATE: "dates", CATEGORIES: "categories"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """`range` is of days for dates, and `form` how these are written where not as ISO 8601."""

    kind: str
    range: tuple[float, float] = (0.0, 1.0)
    categories: tuple[str, ...] = ()
    missing: str | float | None = None
    form: str = ""

    def to_json(self) -> dict[str, Any]:
        given = {"categories": list(self.categories)} if self.kind == CATEGORIES else {}
        given |= {"range": list(self.range)} if self.kind != CATEGORIES else {}
        given |= {} if self.missing is None else {"missing": self.missing}
        return {"kind": self.kind, **given, **({"form": self.form} if self.form else {})}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Column:
        given = dict(data)
        for name in ("range", "categories"):
            if name in given:
                given[name] = tuple(given[name])
        return cls(**given)

    def replaced(self, **changes: Any) -> Column:
        return dataclasses.replace(self, **changes)

    def read(self, cells: Cells) -> Read:
        """Numbers, or the places of categories."""
        if self.kind == CATEGORIES:
            places = {name: place for place, name in enumerate(self.categories)}
            found = np.array([places.get(text, -1) for text in cells.texts()], float)
            return Read(found, cells.missing() & (found < 0), np.zeros(len(found), bool))
        return cells.numbers() if self.kind == NUMBER else cells.days(self.form)

    def unknown(self, cells: Cells) -> int:
        """How many cells have a value that is not among the categories."""
        if self.kind != CATEGORIES:
            return 0
        values, missing, _ = self.read(cells)
        return int(((values < 0) & ~missing)[cells.codes].sum())

    def features(self, name: str, cells: Cells) -> tuple[np.ndarray, list[str]]:
        """A row for each record, and what is wrong with the cells, in words."""
        read = self.read(cells)
        faults = self.faults(name, cells, read)
        values = np.where(read.missing, self._stand_in(), read.values)
        rows = self._rows(np.where(read.bad, np.nan, values))
        if self.missing == INDICATOR:
            rows = np.concatenate([rows, read.missing.astype(np.float32)[:, None]], axis=1)
        return rows[cells.codes], faults

    def _rows(self, values: np.ndarray) -> np.ndarray:
        """The features of these values; of NaN they are 0."""
        if self.kind == CATEGORIES:
            known = len(self.categories)
            places = np.where(values < 0, known, np.nan_to_num(values, nan=known)).astype(int)
            return np.eye(known + 1, dtype=np.float32)[:, :known][places]
        low, high = self.range
        scaled = np.clip((values - low) / (high - low), 0, 1)
        return np.nan_to_num(scaled, nan=0.0).astype(np.float32)[:, None]

    def _stand_in(self) -> float:
        if self.missing is None or self.missing == INDICATOR:
            return np.nan
        if self.kind == CATEGORIES:
            return self.categories.index(str(self.missing))
        return float(self.missing) if self.kind == NUMBER else days_of(self.missing, self.form)

    def faults(self, name: str, cells: Cells, read: Read) -> list[str]:
        faults = []
        if read.bad.any():
            count, records = _found(cells, read.bad)
            examples = quoted(cells.texts()[cells.codes[number]] for number in records)
            what = f"no {'number' if self.kind == NUMBER else 'date'}"
            faults.append(
                f"{name}: {_cells(count)} {what}: {examples} in {record_numbers(records, count)}"
            )
        if read.missing.any() and self.missing is None and self.kind != CATEGORIES:
            count, records = _found(cells, read.missing)
            faults.append(
                f"{name}: {_cells(count)} empty, in {record_numbers(records, count)}; say what "
                f'that means: missing.{key(name)} = "{INDICATOR}", or a constant'
            )
        return faults


Columns = Mapping[str, Column]


def _cells(count: int) -> str:
    return "1 cell is" if count == 1 else f"{count:,} cells are"


def _found(cells: Cells, chosen: np.ndarray) -> tuple[int, list[int]]:
    return int(chosen[cells.codes].sum()), cells.records_with(chosen)


def features_of(table: Table, columns: Columns, faults: Sequence[str] = ()) -> np.ndarray:
    """A row of features for each record; all cells that cannot be used are reported at once.

    `faults` are those that are known already.
    """
    parts, faults = [], list(faults)
    for name, column in columns.items():
        rows, wrong = column.features(name, table.columns[name])
        parts.append(rows)
        faults += wrong
    refuse(table, faults)
    return np.concatenate(parts, axis=1) if parts else np.zeros((table.num_records, 0), np.float32)


def faults_of(table: Table, columns: Columns) -> list[str]:
    """What is wrong with the cells, before anything is made of them."""
    pairs = ((name, column, table.columns[name]) for name, column in columns.items())
    return [
        fault
        for name, column, cells in pairs
        for fault in column.faults(name, cells, column.read(cells))
    ]


def refuse(table: Table, faults: list[str]) -> None:
    """Raises if there are faults, all in one message."""
    if faults:
        lines = "".join(f"\n  {fault}" for fault in faults)
        raise ValueError(f"{table.place} has cells that cannot be used. Mend them:{lines}")


def refuse_others(table: Table, columns: Columns, *, also: bool = True) -> None:
    """Raises if a column is missing or, `also`, if one is unknown."""
    given: Any = columns
    if not isinstance(given, Mapping) or not all(
        isinstance(column, Column) for column in given.values()
    ):
        raise ValueError(
            f"columns is {columns!r}: give those of other records, such as train.columns."
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
