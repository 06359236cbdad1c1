"""Groups runs of the same settings as repetitions, and compares rules by Welch's test.

Two runs are repetitions if their recipes differ only in the seed or in what cannot change the
result.  Rules are compared at the same data, model and budget; p-values are also given after Holm's
correction for the number of comparisons.  Unfinished runs do not count, nor does a second run with
the same seed, which is the same run again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from psac.app.reporting.snapshot import RunSnapshot

INCIDENTAL = {"seed", "data_root", "device", "physical_batch_size"}
TASK = ("data", "model", "model_settings", "epsilon", "noise_multiplier", "delta",
        "validation_fraction")  # fmt: skip
BUDGET = ("epsilon", "noise_multiplier", "delta")
RULE = ("rule", "r", "bound", "scale")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of the same settings.  Groups of one `series` differ only in their budget."""

    runs: tuple[RunSnapshot, ...]
    label: str = ""
    series: str = ""

    @property
    def counted(self) -> list[RunSnapshot]:
        """The finished runs, one for each seed."""
        seeds: set[Any] = set()
        runs = []
        for run in self.runs:
            seed = run.recipe.get("seed")
            if run.finished and run.accuracy is not None and (seed is None or seed not in seeds):
                runs.append(run)
                seeds.add(seed)
        return runs

    @property
    def accuracies(self) -> list[float]:
        return [run.accuracy for run in self.counted if run.accuracy is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def epsilon(self) -> float | None:
        """The largest epsilon of the counted runs."""
        return max((run.epsilon for run in self.counted if run.epsilon is not None), default=None)

    @property
    def deviation(self) -> float | None:
        """The standard deviation between runs."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Accuracy of the first group minus that of the second, with its 95 % interval."""

    first: Group
    second: Group
    difference: float
    low: float
    high: float
    p: float
    holm: float = math.nan


def groups(runs: Sequence[RunSnapshot]) -> list[Group]:
    """The runs by their settings, in order of first appearance, each with a label."""
    members_by_key: dict[str, list[RunSnapshot]] = {}
    for run in runs:
        members_by_key.setdefault(_key(run), []).append(run)
    unnamed = [Group(runs=tuple(members)) for members in members_by_key.values()]
    recipes = [group.runs[0].recipe for group in unnamed]
    labels, series = _labels(recipes), _labels(recipes, leave_out=BUDGET)
    return [
        dataclasses.replace(
            group, label=label or group.runs[0].name, series=name or group.runs[0].name
        )
        for group, label, name in zip(unnamed, labels, series, strict=True)
    ]


def _key(run: RunSnapshot) -> str:
    """The settings that decide the result; a run without a recipe has a key of its own."""
    settings = {k: v for k, v in run.recipe.items() if k not in INCIDENTAL}
    return json.dumps(settings, sort_keys=True, default=str) if settings else f"run {run.name}"


def _labels(recipes: Sequence[Any], leave_out: Iterable[str] = ()) -> list[str]:
    """The rule, and the settings that tell groups apart."""
    skipped = INCIDENTAL | {"rule", *leave_out}
    labels = [str(recipe.get("rule", "")) for recipe in recipes]
    for key in dict.fromkeys(k for recipe in recipes for k in recipe if k not in skipped):
        longer = [
            label if recipe.get(key) is None else f"{label}, {key.replace('_', ' ')} {recipe[key]}"
            for label, recipe in zip(labels, recipes, strict=True)
        ]
        if len(set(longer)) > len(set(labels)):
            labels = longer
    return [label.strip(", ") for label in labels]


def _task(group: Group) -> str:
    recipe = group.runs[0].recipe
    return json.dumps([recipe.get(key) for key in TASK], sort_keys=True, default=str)


def _rule(group: Group) -> tuple[Any, ...]:
    return tuple(group.runs[0].recipe.get(key) for key in RULE)


def comparisons(groups: Sequence[Group]) -> list[Comparison]:
    """Welch's test for each pair of rules on the same task, with two runs or more each."""
    repeated = [group for group in groups if len(group.accuracies) > 1]
    pairs = [
        (a, b)
        for a, b in itertools.combinations(repeated, 2)
        if _task(a) == _task(b) and _rule(a) != _rule(b)
    ]
    return _corrected([_compared(a, b) for a, b in pairs])


def _compared(first: Group, second: Group) -> Comparison:
    a, b = first.accuracies, second.accuracies
    low, high, p = welch(a, b)
    difference = statistics.fmean(a) - statistics.fmean(b)
    return Comparison(first=first, second=second, difference=difference, low=low, high=high, p=p)


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """The 95 % interval of the difference of means, and p; NaN if nothing varies."""
    from scipy import stats

    if statistics.variance(a) + statistics.variance(b) < 1e-18:  # no spread, no test
        return math.nan, math.nan, math.nan
    with warnings.catch_warnings():
        # One group may be constant; then the variance of the other one counts.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        test: Any = stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(0.95)
    return float(interval.low), float(interval.high), float(test.pvalue)


def paired(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """As `welch`, for pairs such as runs with the same seed, whose common variation cancels."""
    from scipy import stats

    differences = [x - y for x, y in zip(a, b, strict=True)]
    if statistics.variance(differences) < 1e-18:
        return math.nan, math.nan, math.nan
    test: Any = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(0.95)
    return float(interval.low), float(interval.high), float(test.pvalue)


def _corrected(pairs: Sequence[Comparison]) -> list[Comparison]:
    """Adds Holm's p-values: the k-th smallest of m is multiplied by m - k + 1, monotonically."""
    tested = sorted((c for c in pairs if not math.isnan(c.p)), key=lambda c: c.p)
    largest, holm = 0.0, {}
    for place, comparison in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - place) * comparison.p))
        holm[id(comparison)] = largest
    return [dataclasses.replace(c, holm=holm.get(id(c), math.nan)) for c in pairs]


def common(runs: Iterable[RunSnapshot], key: str) -> Any:
    """The value of a setting that all runs share, or None."""
    values = {json.dumps(run.recipe.get(key), default=str) for run in runs}
    return json.loads(values.pop()) if len(values) == 1 else None
