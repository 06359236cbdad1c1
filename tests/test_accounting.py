"""Prices match closed forms, other accountants and brute force, and err upwards or not at all."""

import copy
import dataclasses
import json
import logging
import math
import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from psac import sampling
from psac.accounting import (
    Ledger,
    PrivacyWarning,
    balls_in_bins,
    calibrate,
    calibration,
    compose_noise,
    epsilon,
    losses,
    poisson,
    pricing,
    schemes,
    tuned_epsilon,
    without_side_query,
)
from psac.accounting.schemes import SCHEMES
from psac.sampling import ADD_OR_REMOVE, REPLACE

# N = 60000, B = 512, T = 4687, where many numbers are known.
MNIST: dict[str, Any] = {"sampling_rate": 512 / 60_000, "steps": 4687, "delta": 1e-5}
# A setting for each row of the registry.
KNOWN: dict[tuple[str, str], dict[str, Any]] = {
    ("poisson", ADD_OR_REMOVE): MNIST,
    ("poisson", REPLACE): MNIST,
    ("fixed-size-without-replacement", ADD_OR_REMOVE): MNIST,
    ("fixed-size-with-replacement", REPLACE): {**MNIST, "num_records": 60_000},
    ("balls-in-bins", ADD_OR_REMOVE): {**MNIST, "sampling_rate": 1 / 117, "steps": 117 * 40},
}
CHEAP: dict[str, Any] = {"sampling_rate": 0.05, "steps": 40, "delta": 1e-5, "num_records": 1000}
each_scheme = pytest.mark.parametrize(
    "name, relation", SCHEMES, ids=[f"{name} {relation}" for name, relation in SCHEMES]
)


SECOND_OPINION = pricing.theirs


@pytest.fixture(autouse=True, scope="module")
def _first_opinion_alone():
    """Our own prices, without those of dp-accounting, which are slow and would hide them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pricing, "theirs", lambda entries, delta, ours: 0.0)
        yield


@pytest.fixture
def _second_opinion(monkeypatch):
    monkeypatch.setattr(pricing, "theirs", SECOND_OPINION)


def quietly(function, **arguments) -> float:
    """Without the warning of an epsilon above 10."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return function(**arguments)


def entry(name: str = "poisson", relation: str | None = None, **changes):
    plan = {"noise_multiplier": 1.0, "sampling_rate": 0.05, "num_records": 1000, "steps": 40}
    return schemes.entry(sampling=name, relation=relation, **{**plan, **changes})


def profile(name: str, relation: str, **changes) -> losses.Profile:
    return SCHEMES[name, relation].price(entry(name, relation, **changes), 1e-15)[0]


# ---- Known numbers

GOLDEN = [
    ("poisson", ADD_OR_REMOVE, "pld", 0.8, 5.534, 1e-3),
    ("poisson", ADD_OR_REMOVE, "pld", 1.0, 3.391, 1e-3),
    ("poisson", ADD_OR_REMOVE, "pld", 1.5, 1.756, 1e-3),
    ("poisson", ADD_OR_REMOVE, "pld", 1.068, 3.0005, 1e-4),
    ("poisson", ADD_OR_REMOVE, "rdp", 0.8, 6.127, 1e-3),
    ("poisson", ADD_OR_REMOVE, "rdp", 1.0, 3.713, 1e-3),
    ("poisson", ADD_OR_REMOVE, "rdp", 1.5, 1.918, 1e-3),
    ("poisson", REPLACE, "pld", 1.068, 5.1848, 1e-4),
    ("fixed-size-without-replacement", ADD_OR_REMOVE, "pld", 1.068, 18.919, 1e-3),
    ("fixed-size-with-replacement", REPLACE, "pld", 1.068, 32.943, 1e-3),
    ("balls-in-bins", ADD_OR_REMOVE, "pld", 1.068, 2.91, 0.04),  # known to be in 2.87 ... 2.95
]


@pytest.mark.parametrize("name, relation, accountant, noise, expected, tolerance", GOLDEN)
def test_epsilon_has_the_known_value(name, relation, accountant, noise, expected, tolerance):
    plan = {**KNOWN[name, relation], "sampling": name, "relation": relation}
    found = quietly(epsilon, noise_multiplier=noise, accountant=accountant, **plan)
    assert found == pytest.approx(expected, abs=tolerance)


CALIBRATED = [
    ("poisson", ADD_OR_REMOVE, "pld", 1.0681),
    ("poisson", ADD_OR_REMOVE, "rdp", 1.1234),
    ("poisson", REPLACE, "pld", 1.642),
    ("fixed-size-without-replacement", ADD_OR_REMOVE, "pld", 2.137),
    ("fixed-size-with-replacement", REPLACE, "pld", 2.648),
    ("balls-in-bins", ADD_OR_REMOVE, "pld", 1.050),
]


@pytest.mark.parametrize("name, relation, accountant, noise", CALIBRATED)
def test_noise_for_epsilon_three_has_the_known_value(name, relation, accountant, noise):
    plan = {**KNOWN[name, relation], "sampling": name, "relation": relation}
    found = calibrate(epsilon=3.0, accountant=accountant, **plan)
    assert found == pytest.approx(noise, rel=1.2e-3)


def test_tuning_has_the_known_price():
    plan = {**MNIST, "noise_multiplier": 1.1234}
    geometric = tuned_epsilon(expected_runs=10, distribution="geometric", **plan)
    logarithmic = tuned_epsilon(expected_runs=10, distribution="logarithmic", **plan)
    assert geometric == pytest.approx(5.72, abs=0.005)
    assert logarithmic == pytest.approx(4.90, abs=0.005)
    assert tuned_epsilon(expected_runs=30, **plan) > logarithmic
    naive = quietly(epsilon, accountant="rdp", **{**plan, "steps": 46870})
    assert naive == pytest.approx(11.0, abs=0.05)
    assert tuned_epsilon(expected_runs=10, **{**plan, "steps": 0}) == 0.0


def test_orders_that_dp_accounting_leaves_out_are_not_logged(caplog):
    plan = {"noise_multiplier": 0.9, "sampling_rate": 0.05564, "steps": 35, "delta": 1e-5}
    assert 0 < tuned_epsilon(expected_runs=2, **plan) < math.inf
    assert not caplog.records
    logging.getLogger("absl").warning("others are")
    assert [record.getMessage() for record in caplog.records] == ["others are"]


# ---- Closed forms and brute force


def gaussian_log_delta(e: float, mean: float) -> float:
    upper, lower = special.log_ndtr(mean / 2 - e / mean), e + special.log_ndtr(-mean / 2 - e / mean)
    return upper + math.log(max(-math.expm1(lower - upper), 1e-300))


def gaussian_epsilon(delta: float, mean: float) -> float:
    """By Balle and Wang 2018."""
    if gaussian_log_delta(0.0, mean) <= math.log(delta):
        return 0.0
    return optimize.brentq(
        lambda e: gaussian_log_delta(e, mean) - math.log(delta),
        0.0,
        10 * mean + mean**2,
        xtol=1e-14,
    )


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
@pytest.mark.parametrize("noise, steps", [(1.0, 1), (30.0, 100), (0.2, 3), (5000.0, 10**6)])
def test_full_batches_have_the_closed_form_of_the_gaussian_mechanism(noise, steps, delta):
    plan = {"noise_multiplier": noise, "sampling_rate": 1.0, "steps": steps, "delta": delta}
    exact = gaussian_epsilon(delta, math.sqrt(steps) / noise)
    assert exact <= quietly(epsilon, **plan) <= exact * (1 + 1e-4) + 1e-12
    twice = gaussian_epsilon(delta, 2 * math.sqrt(steps) / noise)
    assert twice <= quietly(epsilon, relation=REPLACE, **plan) <= twice * (1 + 1e-4) + 1e-12


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize("noise, count", [(30.0, 100), (300.0, 10**4), (1e3, 10**6), (3e3, 10**6)])
def test_many_releases_never_cost_less_than_the_closed_form(noise, count, delta):
    """Without the tilt, a million releases come out too low from delta 1e-8 on."""
    release = poisson.sampled(entry(sampling_rate=1.0, steps=1), 1 / noise)[0]
    exact = gaussian_epsilon(delta, math.sqrt(count) / noise)
    assert exact <= losses.epsilon([(release, count)], delta) <= exact * (1 + 5e-4)


def test_different_releases_compose_to_the_closed_form():
    noises = [(20.0, 30), (50.0, 400), (7.0, 2)]
    releases = [
        (poisson.sampled(entry(sampling_rate=1.0, steps=1), 1 / noise)[0], count)
        for noise, count in noises
    ]
    mean = math.sqrt(sum(count / noise**2 for noise, count in noises))
    exact = gaussian_epsilon(1e-6, mean)
    assert exact <= losses.epsilon(releases, 1e-6) <= exact * (1 + 1e-4)


X = np.linspace(-50, 50, 50_001)


def divergence(upper: dict[float, float], lower: dict[float, float], e: float) -> float:
    """Hockey-stick divergence of mixtures {mean: weight} of unit normals, by plain integration."""
    p, q = (
        sum(weight * stats.norm.pdf(X, mean) for mean, weight in mixture.items())
        for mixture in (upper, lower)
    )
    return float(np.maximum(p - math.exp(e) * q, 0).sum() * (X[1] - X[0]))


@pytest.mark.parametrize("rate, noise", [(0.3, 0.9), (0.05, 2.0), (0.9, 0.5)])
@pytest.mark.parametrize("e", [0.0, 0.02, 0.3, 1.5])
def test_profiles_of_poisson_sampling_match_integration(rate, noise, e):
    without, place = {0.0: 1.0}, np.array([e])
    drawn = {0.0: 1 - rate, 1 / noise: rate}
    opposite = {0.0: 1 - rate, -1 / noise: rate}
    added_or_removed = profile("poisson", ADD_OR_REMOVE, sampling_rate=rate, noise_multiplier=noise)
    replaced = profile("poisson", REPLACE, sampling_rate=rate, noise_multiplier=noise)
    for curve, upper, lower in (
        (added_or_removed.removed, drawn, without),
        (added_or_removed.added, without, drawn),
        (replaced.removed, drawn, opposite),
        (replaced.added, opposite, drawn),
    ):
        assert curve(place)[0] == pytest.approx(divergence(upper, lower, e), abs=1e-6)


@pytest.mark.parametrize("records, draws, noise", [(10, 5, 1.0), (10, 10, 3.0), (1000, 20, 1.5)])
def test_the_bound_with_replacement_covers_data_sets_that_can_occur(records, draws, noise):
    bound = profile(
        "fixed-size-with-replacement",
        REPLACE,
        num_records=records,
        sampling_rate=draws / records,
        noise_multiplier=noise,
    )
    chances = stats.binom.pmf(np.arange(draws + 1), draws, 1 / records)
    against_others = {2 * k / noise: p for k, p in enumerate(chances)}  # C, all others -C
    alone = {k / noise: p for k, p in enumerate(chances)}  # C, all others 0
    opposite = {-k / noise: p for k, p in enumerate(chances)}
    for e in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        allowed = bound.removed(np.array([e]))[0] + 1e-9
        assert divergence(against_others, {0.0: 1.0}, e) <= allowed
        assert divergence({0.0: 1.0}, against_others, e) <= allowed
        assert divergence(alone, opposite, e) <= allowed


def test_without_replacement_the_price_is_reached_by_a_data_set():
    bound = profile("fixed-size-without-replacement", ADD_OR_REMOVE, noise_multiplier=1.5)
    pushed_out = {0.0: 0.95, 2 / 1.5: 0.05}  # C, all others -C
    for e in (0.0, 0.1, 1.0):
        reached = divergence(pushed_out, {0.0: 1.0}, e)
        assert bound.removed(np.array([e]))[0] == pytest.approx(reached, abs=1e-6)


@pytest.mark.parametrize("noise", [1.3, 3.0, 40.0])
def test_two_bins_match_integration(noise):
    x = np.linspace(-9, 9, 2001)
    weights = stats.norm.pdf(x) * (x[1] - x[0])
    ratio = np.exp(x / noise - 1 / (2 * noise**2))
    ratios, chances = (ratio[:, None] + ratio) / 2, np.outer(weights, weights)
    found = profile("balls-in-bins", ADD_OR_REMOVE, noise_multiplier=noise, sampling_rate=0.5)
    for e in (0.0, 0.1, 0.5, 1.0):
        removed = float((chances * np.maximum(ratios - math.exp(e), 0)).sum())
        added = float((chances * np.maximum(1 - math.exp(e) * ratios, 0)).sum())
        place = np.array([e])
        assert removed - 1e-6 <= found.removed(place)[0] <= removed * 1.01 + 1e-6
        assert added - 1e-6 <= found.added(place)[0] <= added * 1.01 + 1e-6


def test_one_bin_is_a_full_batch():
    plan = {"noise_multiplier": 9.0, "sampling_rate": 1.0, "delta": 1e-5, "steps": 20}
    assert epsilon(sampling="balls-in-bins", **plan) == pytest.approx(epsilon(**plan), rel=1e-4)


@each_scheme
def test_cutting_tails_off_only_raises_a_profile(name, relation):
    one, place = entry(name, relation), np.array([0.0, 0.1, 1.0, 5.0, np.inf])
    rough, fine = (SCHEMES[name, relation].price(one, allowed)[0] for allowed in (1e-3, 1e-15))
    assert np.all(rough.removed(place) >= fine.removed(place) - 1e-12)
    assert np.all(rough.added(place) >= fine.added(place) - 1e-12)


def test_the_worse_direction_counts():
    release, count = SCHEMES["poisson", ADD_OR_REMOVE].price(entry(), 1e-15)
    reversed_release = losses.Profile(release.added, release.removed)
    expected = losses.epsilon([(release, count)], 1e-5)
    assert losses.epsilon([(reversed_release, count)], 1e-5) == pytest.approx(expected)


@each_scheme
def test_profiles_are_convex_and_their_masses_sum_to_one(name, relation):
    found = profile(name, relation)
    masses, infinite = losses._connect_dots(found, 1e-3, 5000)[0]
    assert masses.min() >= 0
    assert masses.sum() + infinite == pytest.approx(1, abs=1e-9)
    # Q's masses are those of P over the likelihood ratio, and do not sum to more than 1.
    ratio = np.exp(1e-3 * np.arange(-5000, 5001))
    assert (masses / ratio).sum() <= 1 + 1e-9


# ---- Other accountants


def events_of(entries) -> Any:
    import dp_accounting

    return dp_accounting.ComposedDpEvent(
        [SCHEMES[one.sampling, one.relation].event(one) for one in entries]
    )


def by_dp_accounting(entries, delta: float, step: float = 1e-4) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relations = dp_accounting.NeighboringRelation
    replaced = entries[0].relation == REPLACE
    accountant = PLDAccountant(
        relations.REPLACE_ONE if replaced else relations.ADD_OR_REMOVE_ONE, step
    )
    return accountant.compose(events_of(entries)).get_epsilon(delta)


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE, REPLACE])
@pytest.mark.parametrize("noise, rate, steps", [(1.2, 0.05, 40), (1.0, 0.01, 999), (4.0, 0.5, 30)])
def test_poisson_sampling_agrees_with_dp_accounting(relation, noise, rate, steps):
    one = entry(relation=relation, noise_multiplier=noise, sampling_rate=rate, steps=steps)
    expected = by_dp_accounting([one], 1e-5)
    assert pricing.price([one], 1e-5, "pld") == pytest.approx(expected, rel=2e-5)


def test_a_mixture_agrees_with_dp_accounting():
    ledger = Ledger(secure=True)
    ledger.record(noise_multiplier=1.0, sampling_rate=0.02, steps=100)
    ledger.record(noise_multiplier=2.0, sampling_rate=0.05, steps=50)
    ledger.record(
        noise_multiplier=3.0,
        sampling_rate=0.02,
        steps=10,
        sampling="fixed-size-without-replacement",
    )
    expected = by_dp_accounting(ledger.entries, 1e-5)
    assert ledger.epsilon(1e-5) == pytest.approx(expected, rel=2e-5)
    assert ledger.epsilon(1e-5) < ledger.epsilon(1e-5, accountant="rdp")


TWO_OPINIONS = [
    ("poisson", ADD_OR_REMOVE, 1.0, 0.05, 40),
    ("poisson", REPLACE, 1.2, 0.03, 60),
    ("fixed-size-without-replacement", ADD_OR_REMOVE, 2.0, 0.05, 40),
]


@pytest.mark.usefixtures("_second_opinion")
@pytest.mark.parametrize("name, relation, noise, rate, steps", TWO_OPINIONS)
def test_the_larger_of_two_opinions_counts_and_they_agree(
    monkeypatch, name, relation, noise, rate, steps
):
    one = entry(name, relation, noise_multiplier=noise, sampling_rate=rate, steps=steps)
    second = pricing.theirs([one], 1e-5, ours=1.0)
    both = pricing.price([one], 1e-5, "pld")
    assert second <= both == pytest.approx(second, rel=1e-5)
    monkeypatch.setattr(pricing, "theirs", lambda entries, delta, ours: 7.0)
    assert pricing.price([one], 1e-5, "pld") == 7.0


@pytest.mark.usefixtures("_second_opinion")
def test_no_second_opinion_is_asked_where_it_is_unreliable():
    assert pricing.theirs([entry(steps=10**6)], 1e-8, ours=1.0) == 0.0  # Rounding.
    assert pricing.theirs([entry()], 1e-5, ours=60.0) == 0.0  # A lattice that is too long.
    assert pricing.theirs([entry("balls-in-bins")], 1e-5, ours=1.0) == 0.0  # No price.
    tiny = entry(sampling_rate=1e-6, steps=10**6)  # A lattice of 1e-4 makes it 8 times as large.
    assert pricing.price([tiny], 1e-5, "pld") == pytest.approx(0.00268, rel=2e-3)


@pytest.mark.usefixtures("_second_opinion")
def test_calibration_with_two_opinions_meets_the_target_from_below():
    noise = calibrate(epsilon=3.0, **MNIST)
    assert noise == pytest.approx(1.0681, abs=1e-4)
    assert 2.997 <= epsilon(noise_multiplier=noise, **MNIST) <= 3.0


@pytest.mark.usefixtures("_second_opinion")
def test_a_second_opinion_above_the_target_raises_the_noise(monkeypatch):
    monkeypatch.setattr(pricing, "theirs", lambda entries, delta, ours: 1.0002 * ours)
    noise = calibrate(epsilon=1.0, **CHEAP)
    assert 0.999 <= epsilon(noise_multiplier=noise, **CHEAP) <= 1.0


@pytest.mark.parametrize("noise, rate, steps", [(1.0, 0.05, 40), (0.6, 0.01, 300)])
def test_prices_are_above_optimistic_ones(noise, rate, steps):
    """Rounded downwards, dp-accounting gives a lower bound."""
    from dp_accounting.pld import privacy_loss_distribution

    lower = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    ).self_compose(steps)
    plan = {"noise_multiplier": noise, "sampling_rate": rate, "steps": steps}
    for delta in (1e-3, 1e-5, 1e-7):
        assert lower.get_epsilon_for_delta(delta) <= epsilon(delta=delta, **plan)


def test_renyi_divergences_are_refused_where_they_would_be_wrong():
    for name, relation in SCHEMES:
        plan = {**CHEAP, "sampling": name, "relation": relation, "noise_multiplier": 3.0}
        if SCHEMES[name, relation].renyi:
            tight = epsilon(**plan)
            assert tight < epsilon(accountant="rdp", **plan)
            assert tight < tuned_epsilon(expected_runs=2, **plan)
        else:
            for refused in (
                lambda plan=plan: epsilon(accountant="rdp", **plan),
                lambda plan=plan: tuned_epsilon(expected_runs=2, **plan),
            ):
                with pytest.raises(ValueError, match="no price by Renyi divergences"):
                    refused()


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.8, 1.0, 1.5])
def test_poisson_sampling_agrees_with_prv_accountant(noise):
    prv = pytest.importorskip("prv_accountant")
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    release = PoissonSubsampledGaussianMechanism(
        sampling_probability=MNIST["sampling_rate"], noise_multiplier=noise
    )
    accountant = prv.PRVAccountant(
        prvs=[release], max_self_compositions=[4687], eps_error=0.005, delta_error=1e-10
    )
    lower, estimate, upper = accountant.compute_epsilon(1e-5, [4687])
    found = epsilon(noise_multiplier=noise, **MNIST)
    assert lower <= found <= upper
    assert found == pytest.approx(estimate, rel=1e-4)


@pytest.mark.slow
def test_balls_in_bins_lie_within_the_bounds_of_pld_accounting():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "numba is not installed", ImportWarning)
        other = pytest.importorskip("PLD_accounting")
    config = other.AllocationSchemeConfig(loss_discretization=0.02, tail_truncation=1e-9)
    epoch = other.PrivacyParams(sigma=1.068, num_steps=117)
    upper, lower = (
        other.gaussian_allocation_pld(params=epoch, config=config, bound_type=bound)
        .self_compose(40)
        .get_epsilon_for_delta(1e-5)
        for bound in (other.BoundType.DOMINATES, other.BoundType.IS_DOMINATED)
    )
    plan = {"sampling": "balls-in-bins", "sampling_rate": 1 / 117, "delta": 1e-5}
    assert lower <= epsilon(noise_multiplier=1.068, steps=117 * 40, **plan) <= upper


@pytest.mark.slow
def test_the_bound_with_replacement_is_above_a_data_set_that_can_occur():
    """One record of norm C among others of -C: a lower bound, 21.3 where we say 32.9."""
    from dp_accounting.pld import privacy_loss_distribution

    chances = stats.binom.pmf(np.arange(9), 512, 1 / 60_000)
    chances[0] += 1 - chances.sum()
    lower = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.068, 2.0 * np.arange(9), chances, value_discretization_interval=1e-3
    ).self_compose(4687)
    plan = {**MNIST, "num_records": 60_000, "sampling": "fixed-size-with-replacement"}
    found = quietly(epsilon, noise_multiplier=1.068, **plan)
    assert 21 < lower.get_epsilon_for_delta(1e-5) <= found


# ---- Guarantees


@each_scheme
@pytest.mark.parametrize("target", [0.05, 1.0, 2.5])
def test_calibrated_noise_meets_the_target_from_below(name, relation, target):
    plan = {**CHEAP, "sampling": name, "relation": relation}
    noise = calibrate(epsilon=target, **plan)
    assert 0.999 * target <= epsilon(noise_multiplier=noise, **plan) <= target
    assert epsilon(noise_multiplier=0.998 * noise, **plan) > target


@pytest.mark.parametrize("target", [0.01, 100.0])
@pytest.mark.parametrize("rate, steps", [(1e-5, 10**6), (0.01, 10**4), (1.0, 10**6)])
def test_calibration_serves_extreme_plans(target, rate, steps):
    plan = {"sampling_rate": rate, "steps": steps, "delta": 1e-5}
    noise = quietly(calibrate, epsilon=target, **plan)
    assert 0.999 * target <= quietly(epsilon, noise_multiplier=noise, **plan) <= target


PRICES = {
    "just above at the start": lambda noise: 3.0001 / noise,
    "steep": lambda noise: 3 * math.exp(4 - noise**2),
    "flat": lambda noise: 2.9 + 0.2 / (1 + noise),
    "nothing from 7 on": lambda noise: max(0.0, 7 - noise),
    "everything below 2": lambda noise: math.inf if noise < 2 else 3 / (noise - 1),
    "jump": lambda noise: 5.0 if noise < 2 else 1.0,
}


@pytest.mark.parametrize("case", PRICES)
@pytest.mark.parametrize("start", [1.0, 0.05, 500.0])
def test_the_search_for_the_noise_ends_just_below_the_target(case, start):
    price = PRICES[case]
    noise = calibration._solve(price, 3.0, start)
    assert price(noise) <= 3.0
    assert price(0.999 * noise) > 3.0 or price(noise) >= 2.999


def test_rdp_is_calibrated_too():
    noise = calibrate(epsilon=2.0, accountant="rdp", **CHEAP)
    assert 1.998 <= epsilon(noise_multiplier=noise, accountant="rdp", **CHEAP) <= 2.0


ASCENDING = {
    "noise_multiplier": (-1, [1.5, 1.53, 2.0, 5.0, 60.0]),
    "sampling_rate": (1, [0.02, 0.025, 0.1, 0.5, 1.0]),
    "steps": (1, [20, 21, 40, 500]),
    "delta": (-1, [1e-12, 1e-8, 1e-5, 1.1e-5, 1e-3]),
}


@each_scheme
@pytest.mark.parametrize("argument", ASCENDING)
def test_epsilon_is_monotone_in_each_argument(name, relation, argument):
    sign, values = ASCENDING[argument]
    if (name, argument) == ("balls-in-bins", "delta"):
        values = values[1:]  # Rounding makes the first infinite.
    plan = {**CHEAP, "noise_multiplier": 2.0, "sampling": name, "relation": relation}
    plan["num_records"] = 1000
    found = []
    for value in values:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            found.append(sign * epsilon(**{**plan, argument: value}))
    assert found == sorted(found)
    if (name, argument) != ("balls-in-bins", "steps"):
        assert len(set(found)) == len(found)


@settings(max_examples=12, deadline=None)
@given(
    st.floats(0.7, 50),
    st.floats(1e-4, 0.5),
    st.integers(1, 2000),
    st.floats(-12, -2),
    st.sampled_from([ADD_OR_REMOVE, REPLACE]),
)
def test_more_noise_fewer_steps_and_more_delta_never_cost_more(
    noise, rate, steps, digits, relation
):
    def cost(noise: float, steps: int, delta: float) -> float:
        one = entry(relation=relation, noise_multiplier=noise, sampling_rate=rate, steps=steps)
        return pricing.price([one], delta, "pld")

    delta = 10.0**digits
    found = cost(noise, steps, delta)
    slack = found * (1 + 2e-4) + 1e-9  # The lattice is not the same.
    assert cost(1.1 * noise, steps, delta) <= slack
    assert cost(noise, max(1, steps // 2), delta) <= slack
    assert cost(noise, steps, 1.5 * delta) <= slack
    mean = math.sqrt(steps) * (1 if relation == ADD_OR_REMOVE else 2) / noise
    assert found <= gaussian_epsilon(delta, mean) * (1 + 1e-3) + 1e-9  # Sampling never hurts.
    single = profile("poisson", relation, noise_multiplier=noise, sampling_rate=rate)
    assert single.removed(np.array([found]))[0] <= delta * (1 + 1e-9)  # One step is part of it.
    assert single.added(np.array([found]))[0] <= delta * (1 + 1e-9)


@each_scheme
def test_no_steps_cost_nothing_and_no_noise_everything(name, relation):
    plan = {**CHEAP, "sampling": name, "relation": relation}
    assert epsilon(noise_multiplier=1.0, **{**plan, "steps": 0}) == 0.0
    assert epsilon(noise_multiplier=0.0, **{**plan, "steps": 0}) == 0.0
    assert quietly(epsilon, noise_multiplier=0.0, **plan) == math.inf


EXTREME = [
    {"noise_multiplier": 1.0, "sampling_rate": 1e-6, "steps": 10**6, "delta": 1e-12},
    {"noise_multiplier": 0.3, "sampling_rate": 1e-6, "steps": 10**6, "delta": 1e-5},
    {"noise_multiplier": 1.0, "sampling_rate": 0.01, "steps": 10**6, "delta": 1e-12},
    {"noise_multiplier": 500.0, "sampling_rate": 1.0, "steps": 10**6, "delta": 1e-12},
    {"noise_multiplier": 0.05, "sampling_rate": 0.01, "steps": 1000, "delta": 1e-5},
    {"noise_multiplier": 1e4, "sampling_rate": 0.5, "steps": 10, "delta": 1e-5},
    {"noise_multiplier": 0.02, "sampling_rate": 0.99, "steps": 10**6, "delta": 0.5},
]


@pytest.mark.parametrize("plan", EXTREME)
def test_extreme_plans_are_priced_below_renyi_divergences(plan):
    found = quietly(epsilon, **plan)
    replaced = quietly(epsilon, relation=REPLACE, **plan)
    assert 0 < found <= quietly(epsilon, accountant="rdp", **plan) * (1 + 1e-3)
    assert found <= replaced < math.inf


@each_scheme
def test_extreme_plans_have_a_price_by_every_scheme(name, relation):
    for plan in (EXTREME[1], EXTREME[4]):
        priced = {**plan, "sampling": name, "relation": relation, "num_records": 10**6}
        assert 1 < quietly(epsilon, **priced) < math.inf


def test_a_coarse_lattice_costs_more_and_converges():
    one = SCHEMES["poisson", ADD_OR_REMOVE].price(entry(), 1e-15)
    found = [losses.epsilon([one], 1e-5, coarseness=c) for c in (16, 4, 1)]
    assert found == sorted(found, reverse=True)
    assert found[0] < found[-1] * 1.01


def test_an_epoch_of_balls_in_bins_that_was_begun_counts_as_a_whole_one():
    plan = {"sampling": "balls-in-bins", "sampling_rate": 1 / 50, "delta": 1e-5}
    spent = [epsilon(noise_multiplier=1.0, steps=steps, **plan) for steps in (1, 49, 50, 51, 100)]
    assert spent[0] == pytest.approx(spent[2]) == spent[1]
    assert spent[3] == pytest.approx(spent[4])
    assert spent[2] < 0.9 * spent[3]
    with pytest.raises(ValueError, match=r"Pass 1 / 50 or 1 / 51"):
        epsilon(noise_multiplier=1.0, steps=1, **{**plan, "sampling_rate": 0.0199})


def test_an_epoch_of_balls_in_bins_costs_what_its_least_noise_costs():
    """With one noise in its first half and another one in its second."""
    plan = {"sampling": "balls-in-bins", "sampling_rate": 1 / 50}
    for first, second in ((1.0, 2.0), (2.0, 1.0)):
        split, whole = Ledger(secure=True), Ledger(secure=True)
        split.record(noise_multiplier=first, steps=25, **plan)
        split.record(noise_multiplier=second, steps=25, **plan)
        whole.record(noise_multiplier=1.0, steps=50, **plan)
        assert split.epsilon(1e-5) >= whole.epsilon(1e-5)


def test_little_noise_in_bins_is_priced_without_amplification():
    plan = {"sampling_rate": 1 / 117, "steps": 117, "delta": 1e-5}
    found = quietly(epsilon, noise_multiplier=0.3, sampling="balls-in-bins", **plan)
    assert found == pytest.approx(gaussian_epsilon(1e-5, 1 / 0.3), rel=1e-4)
    lattice = balls_in_bins._log_normal(1.0, 117, 1e-12)
    assert lattice[0].sum() == pytest.approx(1)
    assert (lattice[0] * np.arange(len(lattice[0]))).sum() * lattice[1] == pytest.approx(1)


def test_every_scheme_of_the_sampler_has_a_price_under_its_own_relation():
    for scheme in sampling.SCHEMES.values():
        rate = scheme.sampling_rate(1000, 50)
        plan = {"sampling_rate": rate, "steps": 40, "delta": 1e-5, "num_records": 1000}
        found = quietly(epsilon, noise_multiplier=2.0, sampling=scheme, **plan)
        assert found == quietly(epsilon, noise_multiplier=2.0, sampling=scheme.name, **plan)
        ledger = Ledger(secure=True)
        ledger.record(
            noise_multiplier=2.0, sampling_rate=rate, sampling=scheme, num_records=1000, steps=40
        )
        assert ledger.epsilon(1e-5) == found


# ---- What is refused

WRONG = {
    "delta of 0": ({"delta": 0.0}, ValueError, r"delta is 0.0: allowed is \(0, 1\)"),
    "delta of 1": ({"delta": 1.0}, ValueError, "delta is 1.0"),
    "delta NaN": ({"delta": math.nan}, ValueError, "delta is nan"),
    "delta text": ({"delta": "small"}, TypeError, "delta is 'small'"),
    "rate of 0": ({"sampling_rate": 0.0}, ValueError, r"sampling_rate is 0.0: allowed is \(0, 1\]"),
    "rate above 1": ({"sampling_rate": 1.01}, ValueError, "expected_batch_size / num_records"),
    "negative noise": ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier is -1.0"),
    "infinite noise": ({"noise_multiplier": math.inf}, ValueError, "noise_multiplier is inf"),
    "noise True": ({"noise_multiplier": True}, TypeError, "noise_multiplier is True"),
    "half a step": ({"steps": 1.5}, TypeError, "steps is 1.5"),
    "negative steps": ({"steps": -1}, ValueError, "steps is -1"),
    "no records": ({"num_records": 0}, ValueError, "num_records is 0"),
    "gdp": ({"accountant": "gdp"}, ValueError, "comes out too low .* Known: pld, rdp"),
    "other accountant": ({"accountant": "prv"}, ValueError, "'prv' is unknown. Known: pld, rdp"),
    "shuffled": (
        {"sampling": "shuffled"},
        ValueError,
        "shuffled epoch .* Known: balls-in-bins, fixed",
    ),
    "weighted": ({"sampling": "weighted"}, ValueError, "drawn more often is protected less"),
    "misspelt": ({"sampling": "poison"}, ValueError, "mean 'poisson'.* cannot report an epsilon"),
    "no sampling": ({"sampling": None}, ValueError, "sampling None is unknown"),
    "relation": ({"relation": "friends"}, ValueError, "Known for it: add-or-remove-one, replace"),
    "unpriced relation": (
        {"sampling": "balls-in-bins", "relation": REPLACE},
        ValueError,
        "balls-in-bins has no price under the relation 'replace-one'",
    ),
    "records unknown": (
        {"sampling": "fixed-size-with-replacement", "num_records": None},
        TypeError,
        "num_records is None: .* The price of fixed-size-with-replacement needs it",
    ),
    "no whole batch": (
        {"sampling": "fixed-size-with-replacement", "sampling_rate": 0.0505},
        ValueError,
        "50.5, not a whole number of draws",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused(case):
    change, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        epsilon(**{**CHEAP, "noise_multiplier": 1.0, **change})
    if "noise_multiplier" not in change:
        with pytest.raises(kind, match=message):
            calibrate(**{**CHEAP, "epsilon": 1.0, **change})


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_that_is_none_is_refused(target):
    with pytest.raises(ValueError, match=r"epsilon is .*: allowed is \(0, 1e\+06\]"):
        calibrate(epsilon=target, **CHEAP)
    with pytest.raises(ValueError, match="steps is 0"):
        calibrate(epsilon=1.0, **{**CHEAP, "steps": 0})


def test_a_target_that_no_noise_keeps_is_refused():
    with pytest.raises(ValueError, match="no noise was found that keeps epsilon 2"):
        calibration._solve(lambda noise: math.inf, 2.0, 1.0)


def test_tuning_refuses_what_has_no_price():
    with pytest.raises(ValueError, match="Known: geometric, logarithmic, poisson"):
        tuned_epsilon(expected_runs=3, distribution="uniform", noise_multiplier=1.0, **CHEAP)
    with pytest.raises(ValueError, match=r"expected_runs is 1: allowed is \(1, inf\)"):
        tuned_epsilon(expected_runs=1, noise_multiplier=1.0, **CHEAP)


# ---- Warnings


def test_a_delta_that_allows_to_publish_a_record_is_warned_of():
    plan = {**CHEAP, "noise_multiplier": 5.0, "delta": 1e-3}
    with pytest.warns(PrivacyWarning, match="not below 1 / 1000"):
        epsilon(**plan)
    ledger = Ledger(secure=True)
    ledger.record(noise_multiplier=5.0, sampling_rate=0.1, num_records=1000)
    with pytest.warns(PrivacyWarning, match="not below 1 / 1000"):
        ledger.epsilon(1e-3)
    epsilon(**{**plan, "delta": 0.9e-3})
    epsilon(**{**plan, "num_records": None})


def test_a_large_epsilon_is_warned_of():
    plan = {**CHEAP, "sampling_rate": 1.0}
    with pytest.warns(PrivacyWarning, match="epsilon is 46"):
        epsilon(noise_multiplier=1.0, **plan)
    with pytest.warns(PrivacyWarning, match="epsilon is 11: above"):
        calibrate(epsilon=11.0, **plan)
    ledger = Ledger(secure=True)
    ledger.record(noise_multiplier=0.0, sampling_rate=1.0)
    with pytest.warns(PrivacyWarning, match="epsilon is inf"):
        assert ledger.epsilon(1e-5) == math.inf


# ---- The ledger

STEP: dict[str, Any] = {"noise_multiplier": 1.25, "sampling_rate": 0.01, "num_records": 5000}


def ledger_of_two_kinds(secure: bool = True) -> Ledger:
    ledger = Ledger(secure=secure)
    for _ in range(3):
        ledger.record(**STEP)
    ledger.record(**{**STEP, "noise_multiplier": 2.0}, steps=4)
    return ledger


def test_equal_steps_in_a_row_are_one_entry():
    ledger = ledger_of_two_kinds()
    assert [(one.noise_multiplier, one.steps) for one in ledger.entries] == [(1.25, 3), (2.0, 4)]
    ledger.record(**{**STEP, "noise_multiplier": 2.0}, sampling=sampling.Poisson())
    assert [one.steps for one in ledger.entries] == [3, 5]
    ledger.record(**STEP)
    assert [one.steps for one in ledger.entries] == [3, 5, 1]
    assert ledger.steps == 9


def test_a_refused_step_is_not_recorded():
    ledger = ledger_of_two_kinds()
    before = copy.deepcopy(ledger)
    for wrong in ({"steps": 0}, {"noise_multiplier": -1.0}, {"sampling": "shuffled"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ledger.record(**{**STEP, **wrong})
    with pytest.raises(ValueError, match=r"relation add-or-remove-one.*has replace-one"):
        ledger.record(relation=REPLACE, **STEP)
    assert ledger == before


def test_order_and_division_into_entries_do_not_change_the_price():
    forwards, backwards = Ledger(secure=True), Ledger(secure=True)
    noises = [1.25] * 3 + [2.0] * 4
    for noise in noises:
        forwards.record(**{**STEP, "noise_multiplier": noise})
    for noise in (2.0, 1.25, 2.0, 1.25, 2.0, 1.25, 2.0):
        backwards.record(**{**STEP, "noise_multiplier": noise})
    assert forwards == ledger_of_two_kinds()
    assert forwards != backwards
    assert forwards.epsilon(1e-5) == pytest.approx(backwards.epsilon(1e-5), rel=1e-6)


def test_an_empty_ledger_costs_nothing():
    assert Ledger(secure=True).epsilon(1e-5) == 0.0
    assert Ledger(secure=True).steps == 0
    assert str(Ledger(secure=True)) == "privacy ledger: 0 steps"


def test_a_ledger_survives_json_pickle_and_copy():
    for ledger in (Ledger(secure=True), ledger_of_two_kinds(), ledger_of_two_kinds(secure=False)):
        text = json.dumps(ledger.to_json())
        again = Ledger.from_json(json.loads(text))
        assert again == ledger == pickle.loads(pickle.dumps(ledger)) == copy.deepcopy(ledger)
        again.record(**STEP)
        assert again != ledger
    assert ledger_of_two_kinds() != ledger_of_two_kinds(secure=False)
    assert ledger_of_two_kinds() != "ledger"


def test_a_ledger_of_reproducible_noise_says_that_the_run_is_not_private():
    insecure, secure = ledger_of_two_kinds(secure=False), ledger_of_two_kinds()
    for text in (str(insecure), json.dumps(insecure.to_json()), repr(insecure)):
        assert "NOT private" in text
    for text in (str(secure), json.dumps(secure.to_json()), repr(secure)):
        assert "NOT private" not in text
    secure.secure = False
    assert secure == insecure


def test_a_ledger_prints_its_entries():
    assert str(ledger_of_two_kinds()).splitlines() == [
        "privacy ledger: 7 steps, relation add-or-remove-one",
        "  3 steps, poisson at rate 0.01 of 5000 records, noise multiplier 1.25",
        "  4 steps, poisson at rate 0.01 of 5000 records, noise multiplier 2",
    ]


def test_a_ledger_says_how_records_were_isolated_and_what_was_warned_of():
    ledger = ledger_of_two_kinds()
    assert (ledger.isolation, ledger.warnings, ledger.isolation_statement) == ((), (), "")
    for way in ("alone", "vmap", "vmap"):
        ledger.note_way(way)
    assert ledger.isolation_statement == "by construction (vmap, alone)"
    for _ in range(2):
        ledger.note_warning("A thing has changed.")
    assert ledger != ledger_of_two_kinds()
    again = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
    assert again == ledger == pickle.loads(pickle.dumps(ledger)) == copy.deepcopy(ledger)
    other = ledger_of_two_kinds()
    other.note_way("batched")
    other.note_warning("Another thing has changed.")
    for total in (again + other, other + again):
        assert total.isolation == ("vmap", "alone", "batched")
        assert sorted(total.warnings) == ["A thing has changed.", "Another thing has changed."]
        lines = str(total).splitlines()
        assert (
            lines[1] == "  isolation of records: tested, not by construction (vmap, alone, batched)"
        )
        assert "  warning: A thing has changed." in lines


def edited(place: str, value: Any) -> Any:
    data = ledger_of_two_kinds(secure=False).to_json()
    if place in data:
        return {**data, place: value}
    data["entries"][1] = {**data["entries"][1], place: value}
    return data


DAMAGED = {
    "text": ("{}", "no ledger"),
    "empty": ({}, "no ledger"),
    "other format": (edited("format", "else"), "no ledger"),
    "later version": (edited("version", 3), "version 3; this psac reads 2"),
    "secure as text": (edited("secure", "no"), "damaged: 'secure'"),
    "isolation as text": (edited("isolation", "vmap"), "damaged: .*'isolation'"),
    "another way": (edited("isolation", ["trusted"]), "the way is 'trusted'"),
    "no warnings": (edited("warnings", None), "damaged: .*'warnings'"),
    "a warning is a number": (edited("warnings", [0]), "the warning is 0"),
    "ways in another order": (edited("isolation", ["batched", "vmap"]), "edited"),
    "made secure": (edited("secure", True), "edited"),
    "no entries": (edited("entries", None), "damaged: .*'entries'"),
    "an entry is text": (edited("entries", ["step"]), "entry 0 of the ledger is 'step'"),
    "fewer steps": (edited("steps", 0), "entry 1 of the ledger is damaged: steps is 0"),
    "noise as text": (edited("noise_multiplier", "2"), "entry 1 .* noise_multiplier is '2'"),
    "unknown scheme": (edited("sampling", "shuffled"), "entry 1 .* is refused"),
    "mixed relations": (edited("relation", REPLACE), "entry 1 .* do not add up"),
    "more fields": (edited("epsilon", 0.1), "must have exactly sampling, relation"),
    "unmerged": (edited("noise_multiplier", 1.25), "edited"),
    "extra": ({**ledger_of_two_kinds().to_json(), "note": ""}, "edited"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_ledger_is_refused(case):
    data, message = DAMAGED[case]
    with pytest.raises(ValueError, match=message):
        Ledger.from_json(data)


def test_recording_does_not_load_dp_accounting():
    code = (
        "import sys\nimport psac\nfrom psac.accounting import Ledger\n"
        "ledger = Ledger(secure=True)\n"
        "ledger.record(noise_multiplier=1.0, sampling_rate=0.01)\n"
        "assert 'dp_accounting' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- Several queries on one batch


def test_queries_on_one_batch_compose_like_one():
    assert compose_noise(3.0) == 3.0
    assert compose_noise(3.0, 4.0) == pytest.approx(2.4)
    assert compose_noise(1.0, 0.0) == 0.0
    # The median of AdaptivePSAC at batch size 256: 0.08 % more noise on the gradient.
    assert without_side_query(1.0, 25.6) == pytest.approx(1.00076, abs=1e-5)
    with pytest.raises(ValueError, match="nothing is left for the gradient"):
        without_side_query(1.0, 1.0)
    with pytest.raises(ValueError, match="no noise multiplier"):
        compose_noise()
    with pytest.raises(ValueError, match=r"noise multiplier 1 is -1\.0"):
        compose_noise(1.0, -1.0)


@given(st.floats(1e-3, 1e3), st.floats(1.0001, 1e6))
def test_what_is_left_for_the_gradient_composes_to_the_total(total, factor):
    gradient = without_side_query(total, total * factor)
    assert gradient >= total
    assert compose_noise(gradient, total * factor) == pytest.approx(total, rel=1e-9)


def test_two_queries_cost_what_their_composition_costs():
    full = {"sampling_rate": 1.0, "delta": 1e-5, "num_records": None}
    ledger = Ledger(secure=True)
    ledger.record(noise_multiplier=3.0, sampling_rate=1.0)
    ledger.record(noise_multiplier=4.0, sampling_rate=1.0)
    together = epsilon(noise_multiplier=compose_noise(3.0, 4.0), steps=1, **full)
    assert ledger.epsilon(1e-5) == pytest.approx(together, rel=1e-4)


def test_an_entry_is_a_value():
    one = ledger_of_two_kinds().entries[0]
    assert one == dataclasses.replace(one)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.steps = 0  # type: ignore[misc]


# ---- Two ledgers


def ledger_of(*steps, secure=True, **settings):
    ledger = Ledger(secure=secure)
    for count in steps:
        ledger.record(noise_multiplier=1.0, sampling_rate=0.125, steps=count, **settings)
    return ledger


def test_the_sum_of_two_ledgers_prices_both():
    first, second = ledger_of(3), Ledger(secure=True)
    second.record(noise_multiplier=2.0, sampling_rate=0.5, steps=4)
    both = first + second
    assert both.entries == (*first.entries, *second.entries)
    assert (ledger_of(3) + ledger_of(4)) == ledger_of(7)
    assert (first + ledger_of()) == first
    assert both.epsilon(1e-5) > max(first.epsilon(1e-5), second.epsilon(1e-5))
    assert not (first + ledger_of(1, secure=False)).secure
    with pytest.raises(ValueError, match="they do not add up"):
        first + ledger_of(1, relation="replace-one")
    with pytest.raises(TypeError):
        first + 3


def test_an_epoch_of_bins_that_was_not_ended_is_not_ended_by_another_run():
    bins = {"sampling": "balls-in-bins"}
    both = ledger_of(3, **bins) + ledger_of(5, **bins)
    assert both.steps == 13
    assert both.epsilon(1e-5) == ledger_of(16, **bins).epsilon(1e-5)


# ---- Releases besides the steps of training


def with_release(**changes) -> Ledger:
    ledger = Ledger(secure=True)
    ledger.record(noise_multiplier=30.0, sampling_rate=1.0, what="ranges of 'age'", **changes)
    return ledger


def test_a_release_is_priced_but_is_no_step_of_training():
    ledger = with_release()
    alone = ledger.epsilon(1e-5)
    assert alone == pytest.approx(
        epsilon(noise_multiplier=30, sampling_rate=1, steps=1, delta=1e-5)
    )
    ledger.record(noise_multiplier=1.0, sampling_rate=0.01, steps=100)
    trained = epsilon(noise_multiplier=1.0, sampling_rate=0.01, steps=100, delta=1e-5)
    assert max(alone, trained) < ledger.epsilon(1e-5) < alone + trained
    assert ledger.steps == 100
    assert [entry.what for entry in ledger.releases] == ["ranges of 'age'"]
    assert [entry.what for entry in ledger.training] == [""]
    assert "ranges of 'age', noise multiplier 30" in str(ledger)


def test_a_chance_to_show_more_comes_off_delta():
    ledger = with_release(delta=4e-6)
    plain = epsilon(noise_multiplier=30, sampling_rate=1, steps=1, delta=6e-6)
    assert ledger.epsilon(1e-5) == pytest.approx(plain - math.log1p(-4e-6), rel=1e-9)
    assert ledger.epsilon(1e-5) > with_release().epsilon(1e-5)
    with pytest.warns(PrivacyWarning, match="epsilon is inf"):
        assert ledger.epsilon(3e-6) == math.inf
    assert ledger.epsilon(1e-5, "rdp") > with_release().epsilon(1e-5, "rdp")


def test_dp_accounting_prices_a_release_alike():
    ledger = with_release()
    ledger.record(noise_multiplier=1.0, sampling_rate=0.01, steps=100)
    theirs = by_dp_accounting(ledger.entries, 1e-5)
    assert theirs == pytest.approx(ledger.epsilon(1e-5), rel=1e-3)


def test_a_ledger_with_releases_goes_through_json():
    ledger = with_release(delta=4e-6)
    ledger.record(noise_multiplier=1.0, sampling_rate=0.01)
    written = json.loads(json.dumps(ledger.to_json()))
    assert Ledger.from_json(written) == ledger
    assert "what" not in written["entries"][1]
    without = {**written, "entries": [{**written["entries"][0], "delta": 0.5}]}
    assert Ledger.from_json(without) != ledger


def test_noise_is_calibrated_to_what_a_release_has_left():
    plan = {"sampling_rate": 0.05, "steps": 200, "delta": 1e-5}
    ledger = with_release(delta=4e-7)
    noise = calibrate(epsilon=2.0, after=ledger, **plan)
    assert noise > calibrate(epsilon=2.0, **plan)
    ledger.record(noise_multiplier=noise, sampling_rate=0.05, steps=200)
    assert 2.0 * (1 - 2e-4) < ledger.epsilon(1e-5) <= 2.0
    with pytest.raises(ValueError, match=r"earlier releases already cost .* nothing is left"):
        calibrate(epsilon=0.05, after=with_release(), **plan)
