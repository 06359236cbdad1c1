"""All results that claims are judged by: the files under results/, and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paper.figures.catalogue import FIGURES, THEORY
from paper.tables.row import COLUMNS, OF_THE_PAPER, Percent
from paper.tables.table2 import TABLE2

Data = dict[str, Any]
SEEDS_OF_THE_PAPER = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """Data of the exhibits by name, and the entries of Table 2, as far as they are there."""

    exhibits: Mapping[str, Data]
    table2: list[Data]

    @classmethod
    def read(cls, results: Path) -> Evidence:
        folders = {name: results / "paper" / name for name in FIGURES}
        folders |= {name: results / "theory" / name for name in THEORY}
        stored = {name: _json(folder / "data.json") for name, folder in folders.items()}
        return cls(
            exhibits={name: data for name, data in stored.items() if data is not None},
            table2=_json(results / "table2" / "table.json") or _empty_table(),
        )

    def row(self, name: str) -> dict[str, Data]:
        """The entries of one row of Table 2 by rule."""
        return {entry["rule"]: entry for entry in self.table2 if entry["row"] == name}

    def finished_rows(self, stand_ins: bool = False) -> dict[str, dict[str, Data]]:
        """Rows in which the paper's three rules have two seeds or more.

        Those of the paper by its recipes, and, if asked for, what stands in for some.
        """
        names = dict.fromkeys(entry["row"] for entry in self.table2)
        rows = {name: self.row(name) for name in names if not _has_own_recipe(name)}
        return {
            name: row
            for name, row in rows.items()
            if all(
                rule in row
                and (stand_ins or row[rule]["paper"])
                and len(row[rule]["accuracies"]) > 1
                for rule in OF_THE_PAPER
            )
        }


def _has_own_recipe(name: str) -> bool:
    return name in TABLE2 and TABLE2[name].own_recipe


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _empty_table() -> list[Data]:
    """Table 2 before any run: what the paper has."""
    return [
        {
            "row": row.name,
            "rule": rule,
            "paper": dataclasses.asdict(row.paper[rule]) if rule in row.paper else None,
            "accuracies": [],
            "mean": None,
            "deviation": None,
            "test": None,
        }
        for row in TABLE2.values()
        for rule in COLUMNS
    ]


def paper_p(first: Percent, second: Percent) -> float:
    """Welch's test on the paper's own means and deviations of five runs."""
    from scipy import stats

    numbers = (first.mean, first.deviation, SEEDS_OF_THE_PAPER)
    others = (second.mean, second.deviation, SEEDS_OF_THE_PAPER)
    test: Any = stats.ttest_ind_from_stats(*numbers, *others, equal_var=False)
    return float(test.pvalue)
