"""Which settings a sweep tries: all of a grid, or a random number of random ones.

    grid(recipe, {"learning_rate": [1, 2], "r": [0.01, 0.1]})          four recipes
    drawn(recipe, {"learning_rate": (0.1, 10)}, expected_runs=10)      a random number of recipes

What tuning costs depends on it.  Whoever tries a grid and releases the best has used all runs, and
their prices add up.  If instead the number of runs is drawn from a logarithmic distribution of mean
`expected_runs`, each run draws its settings anew, and nothing but the best run is ever released,
then the price is that of `psac.tuned_epsilon`, far lower (Papernot and Steinke, arXiv:2110.03620).

    P(K = k) = (1 - g)^k / (k ln(1/g)),   E[K] = (1/g - 1) / ln(1/g)

Guarantees: the number and the settings are drawn from the operating system's secure source, unless
the recipe has a seed; values are log-uniform in their range; every other setting is the recipe's.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping, Sequence

from psac.app.training.recipe import Recipe, did_you_mean

TUNABLE = ("learning_rate", "r", "bound", "scale", "momentum", "weight_decay")
SMALLEST = 1e-12  # of g, where the mean is beyond 1e10


def grid(recipe: Recipe, choices: Mapping[str, Sequence[float]]) -> list[Recipe]:
    """A recipe for each combination, in the order in which they are listed."""
    _refuse_others(choices)
    combinations = itertools.product(*choices.values())
    return [
        dataclasses.replace(recipe, **dict(zip(choices, values, strict=True)))
        for values in combinations
    ]


def drawn(
    recipe: Recipe, ranges: Mapping[str, tuple[float, float]], *, expected_runs: float
) -> list[Recipe]:
    """Recipes with settings between those of the ranges, as many as chance says."""
    _refuse_others(ranges)
    for name, (low, high) in ranges.items():
        if not 0 < low < high < math.inf:
            raise ValueError(
                f"{name} is to be drawn between {low:g} and {high:g}: give 0 < low < high."
            )
    source = random.SystemRandom() if recipe.seed is None else random.Random(recipe.seed)
    return [
        dataclasses.replace(
            recipe, **{name: _between(*ends, source) for name, ends in ranges.items()}
        )
        for _ in range(number_of_runs(expected_runs, source))
    ]


def _refuse_others(names: Mapping[str, object]) -> None:
    for name in names:
        if name not in TUNABLE:
            raise ValueError(
                f"{name} is no setting that a sweep can change: the budget must be the same in all "
                f"runs. Those it can: {', '.join(TUNABLE)}.{did_you_mean(name, TUNABLE)}"
            )


def _between(low: float, high: float, source: random.Random) -> float:
    """Log-uniform, to three digits."""
    value = math.exp(source.uniform(math.log(low), math.log(high)))
    return min(max(float(f"{value:.3g}"), low), high)


def number_of_runs(mean: float, source: random.Random) -> int:
    """Drawn from the logarithmic distribution with this mean, which is above 1."""
    if not 1 < mean <= 1000:
        raise ValueError(f"expected_runs is {mean:g}: it must be above 1, and at most 1000.")
    share = 1 - _failure_rate(mean)
    left, k = source.random(), 1
    term = share / -math.log1p(-share)  # P(K = 1)
    while left > term and term > 0:
        left -= term
        term *= share * k / (k + 1)
        k += 1
    return k


def _failure_rate(mean: float) -> float:
    """g, by bisection: the mean falls from infinity to 1 as g goes from 0 to 1."""
    low, high = SMALLEST, 1 - 1e-9
    for _ in range(200):
        middle = math.sqrt(low * high)
        if (1 / middle - 1) / -math.log(middle) > mean:
            low = middle
        else:
            high = middle
    return high
