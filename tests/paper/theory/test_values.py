"""Every formula at a point where it can be worked out by hand: tau0 = r = 1, tau1 = 0.

Inequalities alone would let a constant that is too large pass.
"""

from __future__ import annotations

import math

import pytest

from paper import theory
from paper.theory import Assumptions, Schedule

HERE = Assumptions(L0=1, L1=1, tau0=1, tau1=0)  # L = 3
HALF = Assumptions(L0=1, L1=1, tau0=1, tau1=0.5)
UNIT = Schedule(
    num_parameters=4, noise_multiplier=2, batch_size=4, num_steps=6
)  # d sigma^2/B^2 = 1
ALPHA = 3 / 56
ETA = 1 / 3

VALUES = [
    (lambda: theory.weight(1, 1), 2 / 3),
    (lambda: theory.largest_weight(0.25), 4 / 3),
    (lambda: theory.matched_regulariser(0.25), 3 / 4),
    (lambda: theory.smooth_weight_bound(HERE, 1), 3),
    (lambda: theory.smooth_weight_bound(HERE, 0.25), 5),
    (lambda: theory.weighted_norm_bound(HERE, 1), 2),
    (lambda: theory.weighted_norm_supremum(HERE, 1), 4 / 3),
    (lambda: theory.descent_far(HERE, 1), 3 / 7),
    (lambda: theory.descent_near(HERE, 1), 2 / 5),
    (lambda: theory.alpha(HERE, 1), ALPHA),
    (lambda: theory.deviation(HERE, 1), 3),
    (lambda: theory.deviation(HALF, 1), 4 / (1 / 8 * 6 / 5)),
    (lambda: theory.descent_far(HALF, 1), 2.5 / 5.25),
    (lambda: theory.descent_near(HALF, 1), 1 / 4.5),
    (lambda: theory.largest_learning_rate(HERE, UNIT, 1), ALPHA / 12),
    (lambda: theory.learning_rate(HERE, UNIT), ETA),
    (lambda: theory.delta_term(HERE, UNIT, 1, 3), 4 * 0.5 + ETA * 3 + 3),
    (lambda: theory.non_vanishing_bound(HERE, 1), 28 / 3),
    (lambda: theory.convergence_bound(HERE, UNIT, 1, 3), 8 * 6 / (3 * 3 / 7)),
    (lambda: theory.smallest_num_steps(HERE, UNIT, 1), 32 * 9 / (3 * ALPHA**2)),
    (lambda: theory.auto_s_descent_far(HERE, 1), 1 / 3),
    (lambda: theory.auto_s_deviation(HERE, 1), 1),
    (lambda: theory.auto_s_non_vanishing_bound(HERE, 1), 4),
    (lambda: theory.auto_s_alpha(HERE, 1), 1 / 12),
    (lambda: theory.auto_s_alpha(HERE, 0.5), 1 / 20),
    (lambda: theory.auto_s_smooth_weight_bound(HALF, 0.5), 6),
    (lambda: theory.auto_s_weighted_norm_supremum(HALF, 0.5), 4),
    (lambda: theory.heaviest_norm(0.25), 0.25),
    (lambda: theory.heaviest_norm(2), 0),
    (
        lambda: theory.simple_learning_rate(
            Assumptions(L0=1, L1=0, tau0=1, tau1=0), UNIT, descent_far=0.5, descent=3
        ),
        math.sqrt(1 / 2),
    ),
    (lambda: theory.simple_learning_rate(HERE, UNIT, descent_far=0.5, descent=1e6), 0.25),
    (
        lambda: theory.records_for_noise(
            HERE, 1, num_parameters=6, epsilon=2, delta=math.exp(-4), c2=0.5
        ),
        6 * 0.5 / ALPHA * 4 / 2,
    ),
    (
        lambda: theory.simple_bound(HERE, UNIT, descent_far=0.5, descent=1, learning_rate=0.25),
        1 + 2 / (0.5 * 6 * 0.25) + 0.25 * 2 / 0.5,
    ),
    (
        lambda: theory.smallest_num_records(
            HERE, 1, num_parameters=6, epsilon=2, delta=math.exp(-4), c2=0.5, c3=2
        ),
        4 / 2 * max(6 * 0.5, 12) / ALPHA,
    ),
    (
        lambda: theory.convergence_rate(
            num_records=8, num_parameters=16, epsilon=2, delta=math.exp(-1)
        ),
        0.5,
    ),
]


@pytest.mark.parametrize("function, value", VALUES)
def test_a_formula_has_the_value_that_was_worked_out_by_hand(function, value):
    assert float(function()) == pytest.approx(value, rel=1e-12)
