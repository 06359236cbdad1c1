"""Theorems 1 and 2, Lemmas 6 to 8, and the simple bound."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given

import psac
from paper import theory
from paper.theory import Assumptions, Schedule
from tests.paper.theory.draws import assumptions, logarithmic, regularisers, schedules

SLACK = 1 + 1e-9
TOY = Assumptions(L0=1, L1=0.5, tau0=1, tau1=0.2)


@given(assumptions, schedules, regularisers)
def test_lemma_6_gives_enough_steps_for_lemma_3_and_no_more(assumed, schedule, r):
    steps = theory.smallest_num_steps(assumed, schedule, r)
    enough = dataclasses.replace(schedule, num_steps=steps)
    fewer = dataclasses.replace(schedule, num_steps=0.9 * steps)
    limit = theory.largest_learning_rate(assumed, schedule, r)
    assert theory.learning_rate(assumed, enough) <= limit * SLACK
    assert theory.learning_rate(assumed, fewer) > limit


@given(assumptions, regularisers, logarithmic(0, 6), logarithmic(-1, 1))
def test_lemma_8_gives_enough_records_for_lemma_3_and_no_more(assumed, r, parameters, epsilon):
    budget = {"num_parameters": parameters, "epsilon": epsilon, "delta": 1e-5}
    for c3 in (0.1, 1.0, 10.0):
        records = theory.smallest_num_records(assumed, r, **budget, c3=c3)
        for share, fits in ((1 + 1e-6, True), (0.9, False)):
            count = share * records
            steps = c3 * count**2 * epsilon**2 / (parameters * np.log(1e5))
            schedule = theory.private_schedule(
                num_records=count, batch_size=count / 100, num_steps=steps, **budget
            )
            rate = theory.learning_rate(assumed, schedule)
            assert (rate <= theory.largest_learning_rate(assumed, schedule, r)) == fits


@given(assumptions, regularisers)
def test_the_non_vanishing_bound_exceeds_the_edge_by_eight_thirds(assumed, r):
    assert theory.non_vanishing_bound(assumed, r) * SLACK >= 8 / 3 * assumed.edge


@given(assumptions, regularisers)
def test_at_equal_largest_weight_auto_s_has_the_lower_bound(assumed, r):
    matched = theory.auto_s_non_vanishing_bound(assumed, theory.matched_regulariser(r))
    assert matched < theory.non_vanishing_bound(assumed, r)


def test_at_equal_r_the_orders_are_those_of_table_1():
    r = np.array([1e-8, 1e-10])
    psac_ratio = np.divide(*theory.non_vanishing_bound(TOY, r)[::-1])
    auto_s_ratio = np.divide(*theory.auto_s_non_vanishing_bound(TOY, r)[::-1])
    assert psac_ratio == pytest.approx(10, rel=0.01)  # r^-1/2 over a factor of 100
    assert auto_s_ratio == pytest.approx(100, rel=0.01)  # r^-1


def test_at_equal_and_large_r_it_is_auto_s_that_has_the_lower_bound():
    assert theory.auto_s_non_vanishing_bound(TOY, 1.0) < theory.non_vanishing_bound(TOY, 1.0)


def test_the_bound_of_theorem_2_falls_with_the_steps_to_what_does_not_vanish():
    steps = np.geomspace(1e3, 1e40, 20)
    schedule = Schedule(num_parameters=100, noise_multiplier=1, batch_size=64, num_steps=steps)
    bounds = theory.convergence_bound(TOY, schedule, 0.1, descent=1.0)
    assert (np.diff(bounds) <= 0).all()
    limit = 2 * theory.non_vanishing_bound(TOY, 0.1)  # the proof's Delta counts it twice (E8)
    assert bounds[-1] == pytest.approx(float(limit), rel=1e-6)


def test_corollary_1_is_theorem_2_at_the_noise_of_theorem_1():
    budget = {"num_records": 60_000, "num_parameters": 26_010, "epsilon": 3.0, "delta": 1e-5}
    schedule = theory.private_schedule(**budget, batch_size=512, num_steps=4687)
    rate = theory.convergence_rate(**budget)
    assert schedule.noise / schedule.num_steps == pytest.approx((theory.SAFE_C2 * rate**2) ** 2)


@pytest.mark.parametrize(
    "records, batch, steps, epsilon",
    [(60_000, 512, 4687, 3.0), (60_000, 2048, 1171, 3.0), (50_000, 1024, 2441, 2.0)],
)
def test_theorem_1_with_c2_two_is_on_the_safe_side_of_the_accountant(
    records, batch, steps, epsilon
):
    budget = {"epsilon": epsilon, "delta": 1e-5, "sampling_rate": batch / records}
    noise = theory.noise_multiplier(**budget, num_steps=steps)
    assert noise > psac.calibrate(**budget, steps=steps)


@given(assumptions, schedules, regularisers)
def test_the_simple_bound_is_lowest_at_its_own_learning_rate(assumed, schedule, r):
    settings = {"descent_far": theory.descent_far(assumed, r), "descent": 2.0}
    best = theory.simple_learning_rate(assumed, schedule, **settings)
    lowest = theory.simple_bound(assumed, schedule, **settings)
    assert lowest > assumed.edge
    limit = settings["descent_far"] / np.maximum(assumed.L1 * (1 + schedule.noise), 1e-300)
    for factor in (0.8, 1.25):
        other = np.minimum(factor * best, limit)
        bound = theory.simple_bound(assumed, schedule, **settings, learning_rate=other)
        assert lowest <= bound * SLACK


def test_the_simple_bound_refuses_a_learning_rate_that_its_proof_does_not_cover():
    schedule = Schedule(num_parameters=10, noise_multiplier=1, batch_size=10, num_steps=10)
    with pytest.raises(ValueError, match="learning_rate is too large for this bound"):
        theory.simple_bound(TOY, schedule, descent_far=0.3, descent=1, learning_rate=100)


def test_what_does_not_vanish_in_the_simple_bound_does_not_depend_on_the_rule():
    schedule = Schedule(num_parameters=10, noise_multiplier=1, batch_size=10, num_steps=1e16)
    for n in (theory.descent_far(TOY, 0.001), theory.auto_s_descent_far(TOY, 0.001)):
        bound = theory.simple_bound(TOY, schedule, descent_far=n, descent=1)
        assert bound == pytest.approx(float(TOY.edge), rel=1e-5)


def test_more_than_all_records_in_a_batch_are_refused():
    budget = {"epsilon": 1, "delta": 1e-5, "num_steps": 10}
    with pytest.raises(ValueError, match="sampling_rate is 2: it must be finite, above 0 and at"):
        theory.noise_multiplier(sampling_rate=2, **budget)
    with pytest.raises(ValueError, match="batch_size is 20 and num_records 10"):
        theory.private_schedule(num_records=10, num_parameters=5, batch_size=20, **budget)
