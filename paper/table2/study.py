"""The runs behind Table 2: learning rates are tuned, then the reported seeds are trained.

Guarantees:

- Equal effort for all rules: the same grid of learning rates, one run each, on a seed that is not
  reported.  They are compared on a part of the training data that is held out; nothing is chosen by
  looking at test records.  A tie goes to the smaller rate.
- What is reported is the accuracy after the last epoch, of every seed.
- Each finished run becomes a result file at once (result_files.py); runs that have one are not made
  again, and those that were interrupted go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from paper.result_files import name_of, read_result, write_result
from paper.table2.rows import COLUMNS, TABLE2, Row
from psac.app.training import Job, Outcome, Recipe, Run, train_many
from psac.app.training.many import Watch

Result = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """One row: its result files are in `results`, its run folders in `runs`."""

    row: Row
    results: Path
    runs: Path

    def on(self, data_root: Path | None) -> Study:
        """With the files of its data in this folder."""
        if data_root is None:
            return self
        settings = {**self.row.settings, "data_root": str(data_root)}
        return dataclasses.replace(self, row=dataclasses.replace(self.row, settings=settings))

    def result(self, recipe: Recipe) -> Result | None:
        return read_result(self.results / f"{name_of(recipe)}.json", recipe)

    # What is asked for
    def tuning(self, rule: str) -> list[Recipe]:
        return [self.row.tuning_recipe(rule, rate) for rate in self.row.learning_rates]

    def rate(self, rule: str) -> float | None:
        """The chosen learning rate, as soon as all have been tried."""
        results = [self.result(recipe) for recipe in self.tuning(rule)]
        tried = {
            rate: result["accuracy"]
            for rate, result in zip(self.row.learning_rates, results, strict=True)
            if result is not None
        }
        if not tried or len(tried) < len(results):
            return None
        return min(tried, key=lambda rate: (-tried[rate], rate))

    def reported(self, rule: str) -> list[Recipe]:
        rate = self.rate(rule)
        if rate is None:
            return []
        return [self.row.recipe(rule, rate, seed) for seed in self.row.seeds]

    def results_of(self, rule: str) -> list[Result]:
        """Those reported runs that are finished."""
        results = [self.result(recipe) for recipe in self.reported(rule)]
        return [result for result in results if result is not None]

    # Doing it
    def stages(self) -> Iterator[tuple[str, list[Job]]]:
        """What is missing, in the order in which it must be trained: the second needs the first."""
        for title, recipes in (("tuning", self.tuning), ("reported", self.reported)):
            # All rules with the first seed, then with the second: half a table is a fair one.
            together = zip_longest(*(recipes(rule) for rule in COLUMNS))
            wanted = [recipe for some in together for recipe in some if recipe is not None]
            missing = [recipe for recipe in wanted if self.result(recipe) is None]
            yield title, [Job(recipe, self.runs / name_of(recipe)) for recipe in missing]

    def train(self, jobs: Sequence[Job], *, processes: int, watch: Watch) -> list[Outcome]:
        """Trains the jobs of a stage, and keeps the result of each as soon as it is there."""

        def kept(job: Job, line: dict[str, Any]) -> None:
            if line["kind"] in ("end", "already_finished"):
                write_result(Run(job.folder), self.results / f"{name_of(job.recipe)}.json")
            watch(job, line)

        return train_many(jobs, processes=processes, watch=kept)


def studies(results: Path, runs: Path) -> list[Study]:
    """All rows of Table 2, those included that are not run here."""
    return [
        Study(row=row, results=results / name, runs=runs / name) for name, row in TABLE2.items()
    ]
