"""Each erratum of docs/errata.md with its counter-example: what is printed fails, ours holds."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import psac
from paper import theory
from paper.theory import Assumptions, Schedule

PAGE = Path(__file__).parents[3] / "docs" / "errata.md"
UNIT = Assumptions(L0=1.0, L1=1.0, tau0=1.0, tau1=0.0)
TRAINING = Schedule(num_parameters=1000, noise_multiplier=1, batch_size=100, num_steps=1e4)


def test_every_erratum_on_the_page_has_a_test_and_the_other_way_round():
    on_the_page = set(re.findall(r"^## E(\d+)", PAGE.read_text(), flags=re.MULTILINE))
    here = {found.group(1) for name in globals() if (found := re.match(r"test_e(\d+)_", name))}
    assert on_the_page == here == {str(k) for k in range(1, 15)}


def test_e1_the_accounting_of_poisson_sampling_does_not_cover_draws_with_replacement():
    plan = {"sampling_rate": 512 / 60_000, "steps": 4687, "delta": 1e-5, "num_records": 60_000}
    noise = psac.calibrate(epsilon=3.0, **plan)
    with pytest.warns(psac.PrivacyWarning):
        literal = psac.epsilon(
            noise_multiplier=noise, sampling="fixed-size-with-replacement", **plan
        )
    assert psac.epsilon(noise_multiplier=noise, **plan) <= 3.0
    assert literal > 30


def test_e2_it_is_the_norm_that_is_at_most_c_and_the_gradient_does_not_go_to_zero():
    g = np.array([-3.0, 4.0])
    assert np.linalg.norm(g * theory.weight(5.0, r=0.1)) <= 1
    # Where the full gradient is zero, a skewed minority still moves the weights: no fixed point.
    shares, gradients = np.array([0.1, 0.9]), np.array([0.9, -0.1])
    assert np.sum(shares * gradients) == pytest.approx(0)
    moved = np.sum(shares * gradients * theory.weight(np.abs(gradients), r=0.01))
    assert abs(moved) > 0.3


def test_e3_tau0_plus_tau1_g_is_at_most_g_and_not_one_less_tau1_times_g():
    tau0, tau1, G = 1.0, 0.5, 3.0
    assert tau0 / (1 - tau1) < G
    assert not tau0 + tau1 * G <= (1 - tau1) * G
    assert tau0 + tau1 * G <= G


def test_e4_lemma_5_needs_tau0_squared_times_one_plus_tau0():
    r, tau0, share = 1e-6, 2.5e-7, 0.25
    assumed = Assumptions(L0=1, L1=1, tau0=tau0, tau1=0)
    G = 0.054 * tau0
    shares = np.array([share, 1 - share])
    gradients = G + tau0 * np.array([-1.0, share / (1 - share)])
    weights = theory.weight(np.abs(gradients), r)
    left = np.sum(shares * weights * (G * gradients - theory.alpha(assumed, r) * G**2))
    square = 7 / 8 * theory.descent_near(assumed, r) * G**2
    proved = theory.deviation(assumed, r)
    printed = proved * tau0 / (1 + tau0)  # tau0^3 in place of tau0^2 (1 + tau0)
    assert left < square - printed
    assert left >= square - proved


def test_e5_a_step_in_the_proof_of_lemma_5_needs_tau0_at_most_one():
    tau0, G = 2.0, 4.0  # tau1 = 0
    first, claimed = G - tau0 + 1, G + (1 - tau0) * G / tau0
    assert not first <= claimed
    assert first <= G + tau0  # the other entry of the maximum, which rescues the lemma


def test_e6_the_sign_before_alpha_and_the_missing_l0_in_the_proof_of_theorem_2():
    r, G = 0.1, 1.0
    assumed = Assumptions(L0=1, L1=0, tau0=1e-3, tau1=0)  # f = x^2 / 2 at x = 1, gradients all 1
    eta = float(theory.largest_learning_rate(assumed, TRAINING, r))
    w = float(theory.weight(G, r))
    share = float(theory.alpha(assumed, r)) * eta * w * G**2
    rest = eta**2 * 3 * float(assumed.tau0) ** 2 / (2 * r**2)
    change = (1 - eta * w) ** 2 / 2 - 1 / 2  # without noise
    assert not change <= -eta * w * G**2 - share + rest
    assert change <= -eta * w * G**2 + share + rest
    added = eta**2 * 100 / 2  # by noise with d sigma^2 / B^2 = 100
    assert not change + added <= -eta * w * G**2 + share + rest + float(assumed.L1) * added
    assert change + added <= -eta * w * G**2 + share + rest + float(assumed.L) * added


def test_e7_the_third_term_of_theorem_2_is_eta_times_its_constant():
    assumed = Assumptions(L0=0.5, L1=0, tau0=1, tau1=0)
    r, descent = 0.1, 1.0
    constant = 3 * 0.5 / (2 * r**2)
    noise, steps, L = TRAINING.noise, TRAINING.num_steps, assumed.L
    printed = constant * np.sqrt(L / (2 * steps * noise))
    proved = constant * theory.learning_rate(assumed, TRAINING)
    assert printed / proved == pytest.approx(float(L / 2))  # too small for L < 2, too large above
    first = (descent + 1) * np.sqrt(noise * L / (2 * steps))
    total = theory.delta_term(assumed, TRAINING, r, descent)
    assert total == pytest.approx(float(first + proved + theory.deviation(assumed, r)))


def test_e8_delta_as_defined_doubles_the_constant_that_is_printed():
    endless = dataclasses.replace(TRAINING, num_steps=1e40)
    limit = theory.convergence_bound(UNIT, endless, 0.1, descent=1.0)
    assert limit == pytest.approx(float(2 * theory.non_vanishing_bound(UNIT, 0.1)))


def steps_as_printed(assumed: Assumptions, schedule: Schedule, r) -> np.ndarray:
    """Lemma 6's A with the third entry as it stands in the paper."""
    smooth = theory.smooth_weight_bound(assumed, r) / theory.alpha(assumed, r)
    first = 32 * smooth**2 / (schedule.noise * assumed.L)
    return np.maximum(first, 72 * assumed.L1**2 * schedule.noise / assumed.L)


def test_e9_lemma_6_lacks_alpha_squared_in_its_third_entry():
    generator = np.random.default_rng(9)
    powers = generator.uniform(-2, 2, (3, 20_000))
    assumed = Assumptions(L0=10 ** powers[0], L1=10 ** powers[1], tau0=10 ** powers[2],
                          tau1=generator.uniform(0, 0.95, 20_000))  # fmt: skip
    r = 10 ** generator.uniform(-4, 0, 20_000)
    schedule = Schedule(
        num_parameters=10 ** generator.uniform(1, 6, 20_000),
        noise_multiplier=10 ** generator.uniform(-0.5, 1, 20_000),
        batch_size=10 ** generator.uniform(1, 4, 20_000),
        num_steps=1,
    )
    limit = theory.largest_learning_rate(assumed, schedule, r) * (1 + 1e-9)
    for steps, low, high in (
        (steps_as_printed(assumed, schedule, r), 0.1, 0.2),
        (theory.smallest_num_steps(assumed, schedule, r), 0.0, 0.0),
    ):
        long_enough = dataclasses.replace(schedule, num_steps=steps)
        failed = np.mean(theory.learning_rate(assumed, long_enough) > limit)
        assert low <= failed <= high


BUDGET = {"num_records": 60_000, "num_parameters": 26_010, "epsilon": 3.0, "delta": 1e-5}


def test_e10_the_noise_of_lemma_7_has_no_further_division_by_the_records():
    schedule = theory.private_schedule(**BUDGET, batch_size=512, num_steps=4687)
    as_printed = schedule.noise_multiplier / BUDGET["num_records"]
    assert as_printed < 1e-4 < schedule.noise_multiplier
    # The second term: (B^2 / (T d sigma^2))^(1/4) is sqrt(N eps / (T sqrt(d ln(1/delta)))) / c2^.5.
    fourth_root = (1 / (schedule.num_steps * schedule.noise)) ** 0.25
    spread = BUDGET["num_parameters"] * np.log(1 / BUDGET["delta"])
    ours = np.sqrt(60_000 * 3.0 / (4687 * np.sqrt(spread) * theory.SAFE_C2))
    printed = np.sqrt(60_000 * 3.0 / (4687 * 26_010 * np.sqrt(np.log(1e5)) * theory.SAFE_C2))
    assert fourth_root == pytest.approx(ours)
    assert fourth_root / printed == pytest.approx(26_010**0.25)


def test_e11_the_learning_rate_in_lemma_8_has_a_logarithm_of_delta():
    schedule = theory.private_schedule(**BUDGET, batch_size=512, num_steps=4687)
    printed = 60_000 * 3.0 / (theory.SAFE_C2 * 4687) * np.sqrt(2 / (26_010 * UNIT.L))
    eta = theory.learning_rate(UNIT, schedule)
    assert printed / eta == pytest.approx(np.sqrt(np.log(1e5)))


def test_e12_the_condition_that_holds_naturally_does_not():
    r, records = 0.1, 60_000
    budget = {"num_parameters": 26_010, "epsilon": 3.0, "delta": 1e-5}
    steps = records**2 * 3.0**2 / (26_010 * np.log(1e5))
    schedule = theory.private_schedule(
        num_records=records, batch_size=512, num_steps=steps, **budget
    )
    smooth = Assumptions(L0=1.0, L1=0.0, tau0=0.01, tau1=0.0)  # L1 A' = 0: nothing else is asked
    limit = theory.largest_learning_rate(smooth, schedule, r)
    assert theory.learning_rate(smooth, schedule) > limit
    assert theory.smallest_num_records(smooth, r, **budget) > records


def test_e13_the_number_of_steps_that_theorem_2_asks_for_is_out_of_reach():
    for tau0 in (0.1, 1.0, 10.0):
        toy = dataclasses.replace(UNIT, tau0=tau0)
        assert theory.smallest_num_steps(toy, TRAINING, 0.1) > 1e6


def test_e14_what_does_not_vanish_is_always_above_what_a_shorter_proof_leaves():
    r = np.geomspace(1e-6, 1, 50)
    for tau0 in (0.01, 1.0, 100.0):
        assumed = Assumptions(L0=1, L1=1, tau0=tau0, tau1=0.3)
        endless = dataclasses.replace(TRAINING, num_steps=1e30)
        floor = theory.simple_bound(
            assumed, endless, descent_far=theory.descent_far(assumed, r), descent=1.0
        )
        assert (theory.non_vanishing_bound(assumed, r) > 2.6 * floor).all()
