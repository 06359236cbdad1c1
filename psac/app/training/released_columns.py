"""The columns of a table that a run released with noise before its first step, and their ledger.

They are stored in the run folder, so that a resumed run trains on the same features and does not
release them again, which would cost privacy again.

>>> column = {"kind": "number", "range": [0.0, 50.0]}
>>> content = {"columns": {"age": column}, "unsafe": [], "ledger": Ledger(secure=True).to_json()}
>>> ReleasedColumns.from_json(content).to_json() == content
True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from psac.accounting import Ledger
from psac.app.data.tables.columns import Column, Columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedColumns:
    columns: Columns
    unsafe: tuple[str, ...]
    ledger: Ledger

    def to_json(self) -> dict[str, Any]:
        columns = {name: column.to_json() for name, column in self.columns.items()}
        return {
            "columns": columns,
            "unsafe": list(self.unsafe),
            "ledger": self.ledger.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReleasedColumns:
        columns = {name: Column.from_json(column) for name, column in data["columns"].items()}
        ledger = Ledger.from_json(data["ledger"])
        return cls(columns=columns, unsafe=tuple(data["unsafe"]), ledger=ledger)
