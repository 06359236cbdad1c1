"""The runs behind a table: learning rates are tuned, then the reported seeds are trained.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from paper.result_files import name_of, read_result, write_result
from paper.tables.row import Row
from psac.app.training import Job, Outcome, Recipe, Run, train_many
from psac.app.training.many import Watch
from psac.checks import unknown

Result = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """One row: its result files are in `results`, its run folders in `runs`."""

    row: Row
    results: Path
    runs: Path

    def on(self, data_root: Path | None, weights: Path | None = None) -> Study:
        """With the files of its data and of its model in these folders."""
        settings = dict(self.row.settings)
        if data_root is not None:
            settings["data_root"] = str(data_root)
        if weights is not None:
            settings["model_settings"] = {
                **settings.get("model_settings", {}),
                "weights": str(weights),
            }
        return dataclasses.replace(self, row=dataclasses.replace(self.row, settings=settings))

    def only(self, rules: Iterable[str]) -> Study:
        """With some of its columns."""
        for rule in rules:
            if rule not in self.row.columns:
                raise ValueError(unknown("rule", rule, self.row.columns))
        columns = {rule: self.row.columns[rule] for rule in rules}
        return dataclasses.replace(self, row=dataclasses.replace(self.row, columns=columns))

    def result(self, recipe: Recipe) -> Result | None:
        return read_result(self.results / f"{file_of(recipe)}.json", recipe)

    # What is asked for
    def any_recipe(self) -> Recipe:
        return self.tuning(next(iter(self.row.columns)))[0]

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
            together = zip_longest(*(recipes(rule) for rule in self.row.columns))
            wanted = [recipe for some in together for recipe in some if recipe is not None]
            missing = [recipe for recipe in wanted if self.result(recipe) is None]
            yield title, [Job(recipe, self.runs / file_of(recipe)) for recipe in missing]

    def train(self, jobs: Sequence[Job], *, processes: int, watch: Watch) -> list[Outcome]:
        """Trains the jobs of a stage, and keeps the result of each as soon as it is there."""

        def kept(job: Job, line: dict[str, Any]) -> None:
            if line["kind"] in ("end", "already_finished"):
                write_result(Run(job.folder), self.results / f"{file_of(job.recipe)}.json")
            watch(job, line)

        return train_many(jobs, processes=processes, watch=kept)


def file_of(recipe: Recipe) -> str:
    """Unique among the runs of a row, the one without noise included."""
    return f"{'' if recipe.noise_multiplier != 0 else 'open-'}{name_of(recipe)}"


def studies(rows: Mapping[str, Row], results: Path, runs: Path) -> list[Study]:
    """All rows of a table, those included that are not run here."""
    return [Study(row=row, results=results / name, runs=runs / name) for name, row in rows.items()]
