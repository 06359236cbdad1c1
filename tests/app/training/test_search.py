"""What a sweep tries, and how many runs chance allows it."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from psac.app.training.search import drawn, grid, number_of_runs
from tests.app.training import small


def test_a_grid_is_every_combination_and_nothing_else_changes():
    recipe = small.recipe(rule="psac")
    found = grid(recipe, {"learning_rate": [1, 2], "r": [0.1, 0.2, 0.3]})
    assert [(each.learning_rate, each.r) for each in found] == [
        *((1, 0.1), (1, 0.2), (1, 0.3)),
        *((2, 0.1), (2, 0.2), (2, 0.3)),
    ]
    changed = {
        difference.split(":")[0] for each in found for difference in each.differences(recipe)
    }
    assert changed == {"learning_rate", "r"}


@pytest.mark.parametrize("mean", [1.5, 10, 60])
def test_the_number_of_runs_has_the_logarithmic_distribution(mean):
    source = random.Random(1)
    found = [number_of_runs(mean, source) for _ in range(20_000)]
    assert statistics.fmean(found) == pytest.approx(mean, rel=0.05)
    share = brentq(lambda p: stats.logser.mean(p) - mean, 0.01, 0.99999)
    for k in (1, 2, 3):
        assert found.count(k) / len(found) == pytest.approx(stats.logser.pmf(k, share), abs=0.015)


def test_settings_are_log_uniform_within_their_range():
    found = []
    for seed in range(100):
        recipe = small.recipe(rule="psac", seed=seed)
        found += drawn(recipe, {"learning_rate": (0.01, 100)}, expected_runs=10)
    rates = np.log10([each.learning_rate for each in found])
    assert rates.min() >= -2
    assert rates.max() <= 2
    assert stats.kstest(rates, stats.uniform(-2, 4).cdf).pvalue > 0.01
    assert len(set(rates)) > len(rates) / 2  # every run draws its own


def test_draws_are_repeatable_with_a_seed_alone():
    def rates(seed):
        recipe = small.recipe(rule="psac", seed=seed)
        found = drawn(recipe, {"learning_rate": (0.01, 100)}, expected_runs=50)
        return [each.learning_rate for each in found]

    assert rates(3) == rates(3)
    assert rates(3) != rates(4)
    assert len({tuple(rates(None)) for _ in range(8)}) == 8


def test_what_would_change_the_budget_cannot_be_swept():
    with pytest.raises(ValueError, match="epochs cannot be changed by a sweep"):
        grid(small.recipe(), {"epochs": [1, 2]})
    with pytest.raises(ValueError, match="Did you mean 'learning_rate'"):
        grid(small.recipe(), {"learning_rat": [1, 2]})
    with pytest.raises(ValueError, match="0 < low < high"):
        drawn(small.recipe(), {"r": (0.5, 0.1)}, expected_runs=3)
    with pytest.raises(ValueError, match="above 1"):
        drawn(small.recipe(), {"r": (0.1, 0.5)}, expected_runs=1)
