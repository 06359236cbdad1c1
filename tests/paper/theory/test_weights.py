"""The weight functions of the theory: their shape, and that the library computes the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

import psac
from paper import theory
from tests.paper.theory.draws import logarithmic, regularisers

norms = logarithmic(-9, 6)


@given(norms, logarithmic(-5, 2))
def test_a_contribution_stays_below_one_and_increases_with_the_norm(norm, r):
    smaller, larger = theory.contribution([norm, 1.01 * norm], r)
    assert 0 < smaller <= larger * (1 + 1e-15)  # rounding
    assert larger <= 1


@given(norms, logarithmic(-5, 2))
def test_no_weight_exceeds_the_largest(norm, r):
    assert theory.weight(norm, r) <= theory.largest_weight(r) * (1 + 1e-12)


@given(regularisers)
def test_the_largest_weight_is_taken_at_root_r_less_r(r):
    at = max(np.sqrt(r) - r, 0.0)
    assert theory.weight(at, r) == pytest.approx(theory.largest_weight(r), rel=1e-9)


def test_beyond_r_one_the_largest_weight_is_one():
    assert (theory.largest_weight([1.0, 4.0, 9.0]) == 1).all()
    assert theory.weight(0.0, 4.0) == 1


@given(norms, regularisers)
def test_psac_outweighs_auto_s_of_the_same_r_where_the_norm_exceeds_one_less_r(norm, r):
    more = theory.weight(norm, r) > theory.auto_s_weight(norm, r)
    if abs(norm - (1 - r)) > 1e-9:
        assert bool(more) == (norm > 1 - r) or theory.weight(norm, r) == pytest.approx(
            theory.auto_s_weight(norm, r), rel=1e-12
        )


@given(regularisers)
def test_the_matched_auto_s_has_the_same_largest_weight(r):
    matched = theory.auto_s_weight(0.0, theory.matched_regulariser(r))
    assert matched == pytest.approx(theory.largest_weight(r))


def test_the_library_weighs_as_the_formulas_say():
    norms = np.geomspace(1e-6, 1e4, 60)
    there = torch.tensor(norms)
    for r in (0.001, 0.1, 1.0, 3.0):
        psac_weights = psac.PSAC(r=r).weights(there).numpy()
        np.testing.assert_allclose(theory.weight(norms, r), psac_weights, rtol=1e-12)
        auto_s = psac.AutoS(r=r).weights(there).numpy()
        np.testing.assert_allclose(theory.auto_s_weight(norms, r), auto_s, rtol=1e-12)


def test_limits_in_r_are_normalisation_and_auto_s_with_one():
    norms = np.geomspace(1e-2, 1e2, 20)
    np.testing.assert_allclose(theory.weight(norms, 1e-12), 1 / norms, rtol=1e-6)
    np.testing.assert_allclose(theory.weight(norms, 1e9), theory.auto_s_weight(norms, 1), rtol=1e-6)


def test_arguments_out_of_range_are_named():
    with pytest.raises(ValueError, match="norms is -1: it must be finite, 0 or above"):
        theory.weight([1.0, -1.0], 0.1)
    with pytest.raises(ValueError, match="r is 0: it must be finite, above 0"):
        theory.largest_weight(0.0)
    with pytest.raises(TypeError, match="r is 'small'"):
        theory.weight(1.0, "small")
