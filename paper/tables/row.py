"""A row of a table of the paper, and its columns: one for each clipping rule.

A row says how one of its runs is made (but for rule, learning rate and seed), which learning rates
are tried for every column alike, and what the paper reports.  Rows that are not run here say why;
who has their data can run them by name.  Percentages are of test records; deviations are between
seeds.

Where the paper is silent, the rows are not: r is 0.1 for PSAC, which the paper recommends, and 0.01
for Auto-S, as its authors do; AdaptivePSAC is ours and has the r of PSAC.  The bound is 0.1 for all
rules.  For all but DP-SGD it only scales the learning rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from paper.result_files import settings_of
from psac.app.training import Recipe
from psac.app.training.shipped import load_recipe

TUNING_SEED = 1000  # none of those that are reported
VALIDATION_FRACTION = 0.1  # of the training records, for tuning; the test records stay unseen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A clipping rule with its settings."""

    title: str
    settings: Mapping[str, Any]


OURS = "psac"  # the rule that the others are tested against
OF_THE_PAPER = ("abadi", "auto_s", OURS)
COLUMNS: dict[str, Column] = {
    "abadi": Column(title="DP-SGD", settings={"bound": 0.1}),
    "auto_s": Column(title="Auto-S", settings={"r": 0.01, "bound": 0.1}),
    OURS: Column(title="DP-PSAC", settings={"r": 0.1, "bound": 0.1}),
    "adaptive_psac": Column(title="AdaptivePSAC", settings={"r": 0.1, "bound": 0.1}),
}


@dataclasses.dataclass(frozen=True)
class Percent:
    """Mean and standard deviation, if the paper has one."""

    mean: float
    deviation: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """`note` says what differs; for a row that is not run here, which only its name calls, why.

    `own_recipe` marks a row whose recipe is not the paper's, though its task and budget are.
    """

    name: str
    title: str
    network: str
    budget: str
    paper: Mapping[str, Percent]
    note: str = ""
    columns: Mapping[str, Column] = dataclasses.field(default_factory=lambda: COLUMNS)
    settings: Mapping[str, Any]
    learning_rates: tuple[float, ...]
    validation_fraction: float = VALIDATION_FRACTION
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    own_recipe: bool = False
    run_here: bool = True

    def recipe(self, rule: str, learning_rate: float, seed: int) -> Recipe:
        """A run that is reported."""
        own = {"rule": rule, **self.columns[rule].settings}
        return Recipe(**{**self.settings, **own, "learning_rate": learning_rate, "seed": seed})

    def tuning_recipe(self, rule: str, learning_rate: float) -> Recipe:
        """A run that a learning rate is chosen by."""
        recipe = self.recipe(rule, learning_rate, TUNING_SEED)
        return dataclasses.replace(recipe, validation_fraction=self.validation_fraction)


def in_the_paper(dp_sgd: Percent, auto_s: Percent, psac: Percent) -> dict[str, Percent]:
    """What the paper reports for its three rules."""
    return {"abadi": dp_sgd, "auto_s": auto_s, OURS: psac}


VARIED = ("rule", "r", "bound", "scale", "learning_rate", "seed")


def shipped(name: str) -> dict[str, Any]:
    """A recipe that comes with the library, but for what varies within a row."""
    settings = settings_of(load_recipe(name))
    return {key: value for key, value in settings.items() if key not in VARIED}
