"""The settings that a sweep tries: a grid, or a random number of random settings.

    grid(recipe, {"learning_rate": [1, 2], "r": [0.01, 0.1]})          four recipes
    drawn(recipe, {"learning_rate": (0.1, 10)}, expected_runs=10)      a random number of recipes

The cost of tuning depends on it.  Releasing the best run of a grid uses all runs, so their costs
add up.  If the number of runs is drawn from a logarithmic distribution with mean `expected_runs`,
each run draws its settings independently, and only the best run is ever released, then the cost is
`psac.tuned_epsilon`, which is far lower (Papernot and Steinke, arXiv:2110.03620).

    P(K = k) = (1 - g)^k / (k ln(1/g)),   E[K] = (1/g - 1) / ln(1/g)

Guarantees: the number and the settings are drawn from the secure generator of the operating system,
unless the recipe has a seed; values are log-uniform in their ranges.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping, Sequence

from psac.app.training.recipe import OTHER_WORDS, Recipe
from psac.checks import suggestion

TUNABLE = ("learning_rate", "r", "bound", "scale", "momentum", "weight_decay")
SMALLEST = 1e-12  # value of g, where the mean is above 1e10


def grid(recipe: Recipe, choices: Mapping[str, Sequence[float]]) -> list[Recipe]:
    """A recipe for each combination of the choices."""
    _refuse_others(choices)
    combinations = itertools.product(*choices.values())
    return [
        dataclasses.replace(recipe, **dict(zip(choices, values, strict=True)))
        for values in combinations
    ]


def drawn(
    recipe: Recipe, ranges: Mapping[str, tuple[float, float]], *, expected_runs: float
) -> list[Recipe]:
    """A random number of recipes with random settings in these ranges."""
    _refuse_others(ranges)
    for name, (low, high) in ranges.items():
        if not 0 < low < high < math.inf:
            raise ValueError(
                f"{name} has the range {low:g} to {high:g}: it must be 0 < low < high."
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
                f"{name} cannot be changed by a sweep, as all runs must have the same budget. "
                f"Settings that can be changed: {', '.join(TUNABLE)}."
                f"{suggestion(name, TUNABLE, OTHER_WORDS)}"
            )


def _between(low: float, high: float, source: random.Random) -> float:
    """Log-uniform, to three digits."""
    value = math.exp(source.uniform(math.log(low), math.log(high)))
    return min(max(float(f"{value:.3g}"), low), high)


def number_of_runs(mean: float, source: random.Random) -> int:
    """A sample of the logarithmic distribution with this mean."""
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
