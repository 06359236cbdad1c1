"""Repetitions and tests between rules, against the textbook formulas."""

from __future__ import annotations

import dataclasses
import math
import statistics as plain

import pytest
from scipy.special import stdtr

from psac.app.reporting.snapshot import RunSnapshot
from psac.app.reporting.statistics import Group, comparisons, groups, paired
from psac.app.reporting.statistics import welch as compared_by_welch

EMPTY = RunSnapshot(
    name="", recipe={}, environment={}, start={}, resumed=0, steps=(), evaluations=(), end={},
    summary={}, mistakes=(), mistakes_are_public=False, warned=(), ledger=None,
    epsilon=3.0, notes=(),
)  # fmt: skip


def run(accuracy: float, *, rule: str = "psac", seed: int | None = None, **settings) -> RunSnapshot:
    recipe = {"data": "mnist", "model": "cnn", "rule": rule, "epsilon": 3.0, **settings}
    recipe |= {} if seed is None else {"seed": seed}
    summary = {"accuracy": accuracy}
    return dataclasses.replace(EMPTY, name=f"{rule}-{seed}", recipe=recipe, summary=summary)


def welch(a, b):
    """Welch's p-value from its definition."""
    va, vb = plain.variance(a) / len(a), plain.variance(b) / len(b)
    t = (plain.fmean(a) - plain.fmean(b)) / math.sqrt(va + vb)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return 2 * stdtr(freedom, -abs(t))


def test_runs_that_differ_in_the_seed_alone_are_one_group():
    runs = [run(0.9, seed=1), run(0.91, seed=2, data_root="elsewhere"), run(0.8, r=0.5)]
    found = groups(runs)
    assert [len(group.runs) for group in found] == [2, 1]
    assert found[0].mean == pytest.approx(0.905)
    assert [group.label for group in found] == ["psac", "psac, r 0.5"]


def test_labels_name_what_differs_and_no_more():
    runs = [run(0.9, epsilon=e, rule=rule, r=r) for e in (1.0, 3.0)
            for rule, r in (("psac", 0.1), ("abadi", None))]  # fmt: skip
    found = groups(runs)
    assert [group.label for group in found] == [
        "psac, epsilon 1.0", "abadi, epsilon 1.0", "psac, epsilon 3.0", "abadi, epsilon 3.0",
    ]  # fmt: skip
    assert [group.series for group in found] == ["psac", "abadi", "psac", "abadi"]


def test_the_same_seed_twice_and_unfinished_runs_do_not_count():
    unfinished = dataclasses.replace(run(0.1, seed=3), summary={}, evaluations=({"accuracy": 0.1},))
    (group,) = groups([run(0.9, seed=1), run(0.9, seed=1), run(0.92, seed=2), unfinished])
    assert group.accuracies == [0.9, 0.92]


def test_secure_runs_are_all_repetitions():
    (group,) = groups([run(0.9), run(0.91), run(0.92)])
    assert len(group.accuracies) == 3


def test_welch_and_holm_agree_with_their_definitions():
    samples = {"psac": [0.90, 0.91, 0.93], "abadi": [0.85, 0.86], "nsgd": [0.90, 0.92, 0.90, 0.91]}
    runs = [
        run(a, rule=rule, seed=i) for rule, values in samples.items() for i, a in enumerate(values)
    ]
    found = comparisons(groups(runs))
    pairs = [(c.first.label, c.second.label) for c in found]
    assert pairs == [("psac", "abadi"), ("psac", "nsgd"), ("abadi", "nsgd")]
    expected = [welch(samples[a], samples[b]) for a, b in pairs]
    assert [c.p for c in found] == pytest.approx(expected)
    order = sorted(range(3), key=lambda i: expected[i])
    holm = {}
    for rank, place in enumerate(order):
        before = holm[order[rank - 1]] if rank else 0.0
        holm[place] = min(1.0, max(before, (3 - rank) * expected[place]))
    assert [c.holm for c in found] == pytest.approx([holm[i] for i in range(3)])
    assert all(c.low < c.difference < c.high for c in found)


@pytest.mark.parametrize("other", [{"data": "digits"}, {"epsilon": 1.0}, {"model": "linear"}])
def test_rules_are_not_compared_across_tasks(other):
    runs = [run(0.9 + i / 100, seed=i) for i in range(2)]
    runs += [run(0.8 + i / 100, rule="abadi", seed=i, **other) for i in range(2)]
    assert comparisons(groups(runs)) == []


def test_one_seed_each_is_no_test():
    assert comparisons(groups([run(0.9, seed=1), run(0.8, rule="abadi", seed=1)])) == []


def test_equal_accuracies_have_no_p_value():
    runs = [run(0.9, rule=rule, seed=i) for rule in ("psac", "abadi") for i in range(2)]
    (found,) = comparisons(groups(runs))
    assert math.isnan(found.p)
    assert math.isnan(found.holm)


def test_one_constant_group_is_compared_by_the_spread_of_the_other():
    constant, other = [0.9, 0.9, 0.9], [0.8, 0.81, 0.82]
    low, high, p = compared_by_welch(constant, other)
    assert p == pytest.approx(welch(constant, other))
    assert (low + high) / 2 == pytest.approx(0.09)


def test_a_group_without_accuracy_has_no_mean():
    group = Group(runs=(EMPTY,))
    assert group.mean is None
    assert group.deviation is None
    assert group.epsilon is None


def test_pairs_are_tested_by_their_differences():
    a, b = [0.9, 0.8, 0.7, 0.85], [0.88, 0.79, 0.67, 0.84]
    differences = [x - y for x, y in zip(a, b, strict=True)]
    t = plain.fmean(differences) / (plain.stdev(differences) / 2)
    low, high, p = paired(a, b)
    assert p == pytest.approx(2 * stdtr(3, -abs(t)))
    assert (low + high) / 2 == pytest.approx(plain.fmean(differences))
    assert p < 0.05 < compared_by_welch(a, b)[-1]  # what varies in both is left out
    assert all(math.isnan(value) for value in paired([0.9, 0.8], [0.8, 0.7]))
