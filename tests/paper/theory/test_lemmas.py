"""Lemmas 2 to 5 on gradients that satisfy Assumption 2, and how tight they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paper import theory
from tests.paper.theory.draws import assumptions, gradients, regularisers, schedules

SLACK = 1 + 1e-9


@given(assumptions, regularisers, st.data(), st.booleans())
def test_lemma_2_bounds_the_smoothness_times_the_weight(assumed, r, data, far):
    found = gradients(assumed, data.draw, far=far)
    smooth = assumed.L0 + assumed.L1 * found.G
    for weight, bound in (
        (theory.weight, theory.smooth_weight_bound),
        (theory.auto_s_weight, theory.auto_s_smooth_weight_bound),
    ):
        assert (smooth * weight(found.norms, r) <= bound(assumed, r) * SLACK).all()


def auto_s_learning_rate(assumed, schedule, r):
    """Lemma 3's condition with the constants of Auto-S."""
    factor = theory.auto_s_alpha(assumed, r)
    noisy = factor / (6 * assumed.L1 * schedule.noise) if assumed.L1 else np.inf
    return np.minimum(factor / (4 * theory.auto_s_smooth_weight_bound(assumed, r)), noisy)


RULES = {
    "psac": (theory.weight, theory.alpha, theory.largest_learning_rate),
    "auto_s": (theory.auto_s_weight, theory.auto_s_alpha, auto_s_learning_rate),
}


@pytest.mark.parametrize("rule", RULES)
@given(assumptions, schedules, regularisers, st.data(), st.booleans())
def test_lemma_3_bounds_each_term_of_second_order(rule, assumed, schedule, r, data, far):
    weight, alpha, limit = RULES[rule]
    found = gradients(assumed, data.draw, far=far)
    eta = limit(assumed, schedule, r)
    G, w = found.G, weight(found.norms, r)
    smooth = assumed.L0 + assumed.L1 * G
    share = alpha(assumed, r) * eta * w * G**2 / 4
    apart = found.norms**2 - 2 * G * found.along + G**2  # |g - grad f|^2
    rest = (assumed.L0 * assumed.kept + assumed.L1 * assumed.tau0) * assumed.tau0**2 * eta**2
    rest = rest / (r**2 * assumed.kept**3)
    noise = eta**2 * schedule.noise / 2
    for left, right in (
        (smooth * noise, assumed.L * noise + share),
        (smooth * eta**2 * w**2 * (G * found.along - G**2), rest + share),
        (smooth / 2 * eta**2 * w**2 * apart, rest / 2 + share),
        (smooth / 2 * eta**2 * w**2 * G**2, share),
    ):
        assert (left <= right * SLACK + 1e-300).all()


@given(assumptions, regularisers, st.data(), st.booleans())
def test_lemma_4_bounds_the_weighted_norm_of_the_full_gradient(assumed, r, data, far):
    found = gradients(assumed, data.draw, far=far)
    product = found.G * theory.weight(found.norms, r)
    supremum = theory.weighted_norm_supremum(assumed, r)
    assert (product <= supremum * SLACK).all()
    assert supremum <= theory.weighted_norm_bound(assumed, r) * SLACK
    assert theory.weighted_norm_bound(assumed, r) <= 2 * supremum * SLACK


@given(assumptions, regularisers, st.data(), st.booleans())
def test_lemma_4_holds_for_auto_s_with_its_own_constant(assumed, r, data, far):
    found = gradients(assumed, data.draw, far=far)
    product = found.G * theory.auto_s_weight(found.norms, r)
    assert (product <= theory.auto_s_weighted_norm_supremum(assumed, r) * SLACK).all()


@given(assumptions, regularisers)
def test_the_suprema_of_lemma_4_are_reached(assumed, r):
    norms = np.geomspace(1e-8, 1e8, 20_001)  # the least norm that G allows a sample
    G = (norms + assumed.tau0) / assumed.kept
    for weight, supremum in (
        (theory.weight, theory.weighted_norm_supremum),
        (theory.auto_s_weight, theory.auto_s_weighted_norm_supremum),
    ):
        reached = (weight(norms, r) * G).max()
        assert reached == pytest.approx(supremum(assumed, r), rel=3e-3)


def descent(found, weights, alpha):
    """E[w <grad f, g>] - alpha E[w] G^2."""
    return float(np.sum(found.shares * weights * (found.G * found.along - alpha * found.G**2)))


@given(assumptions, regularisers, st.data())
def test_lemma_5_far_from_the_optimum(assumed, r, data):
    found = gradients(assumed, data.draw, far=True)
    left = descent(found, theory.weight(found.norms, r), theory.alpha(assumed, r))
    assert left * SLACK >= 3 / 4 * theory.descent_far(assumed, r) * found.G


@given(assumptions, regularisers, st.data())
def test_lemma_5_near_the_optimum(assumed, r, data):
    found = gradients(assumed, data.draw, far=False)
    left = descent(found, theory.weight(found.norms, r), theory.alpha(assumed, r))
    square = 7 / 8 * theory.descent_near(assumed, r) * found.G**2
    assert left + theory.deviation(assumed, r) * SLACK >= square


@given(assumptions, regularisers, st.data(), st.booleans())
def test_lemma_5_holds_for_auto_s_with_its_own_constants(assumed, r, data, far):
    found = gradients(assumed, data.draw, far=far)
    left = descent(found, theory.auto_s_weight(found.norms, r), theory.auto_s_alpha(assumed, r))
    if far:
        assert left * SLACK >= 3 / 4 * theory.auto_s_descent_far(assumed, r) * found.G
    else:
        largest_norm = assumed.tau0 + (1 + assumed.tau1) * assumed.edge
        square = 7 / 8 * found.G**2 / (largest_norm + r)
        assert left + theory.auto_s_deviation(assumed, r) * SLACK >= square


@given(assumptions, regularisers)
def test_the_entries_that_never_bind(assumed, r):
    root = np.sqrt(r)
    first = root / (root + assumed.tau0)
    assert first <= (2 * root - r) / (root - r + assumed.tau0) * SLACK
    smooth = assumed.L0 * assumed.kept + assumed.L1 * (assumed.tau0 + root)
    bound = smooth / (assumed.kept * root)
    assert theory.smooth_weight_bound(assumed, r) == pytest.approx(float(bound))


def test_constants_are_vectorised_over_all_of_their_arguments():
    assumed = theory.Assumptions(L0=1, L1=1, tau0=np.ones((3, 1, 1)), tau1=np.zeros((2, 1)))
    for function in (theory.descent_far, theory.descent_near, theory.alpha, theory.deviation):
        assert function(assumed, np.full(5, 0.1)).shape == (3, 2, 5)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"tau1": 1.0}, "tau1 is 1: it must be finite, from 0 to below 1"),
        ({"tau0": 0.0}, "tau0 is 0: it must be finite, above 0"),
        ({"L1": -1.0}, "L1 is -1: it must be finite, 0 or above"),
        ({"L0": float("nan")}, "L0 is nan: it must be finite"),
    ],
)
def test_assumptions_out_of_range_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        theory.Assumptions(**{"L0": 1.0, "L1": 1.0, "tau0": 1.0, "tau1": 0.5} | given)


def test_the_lemmas_refuse_an_r_that_they_do_not_cover():
    assumed = theory.Assumptions(L0=1, L1=1, tau0=1, tau1=0)
    with pytest.raises(ValueError, match=r"r is 1\.5: it must be finite, above 0 and at most 1"):
        theory.deviation(assumed, 1.5)
