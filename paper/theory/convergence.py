"""Theorem 2 and Lemma 6: how small the gradient gets in T steps of DP-PSAC at a given noise.

    E min_t |grad f(x_t)|  <=  convergence_bound        for T >= smallest_num_steps

with the constant step `learning_rate`.  As T grows the bound does not vanish: the paper keeps
`non_vanishing_bound`, of order r^-1/2.  It always exceeds tau0 / (1 - tau1) by 8/3 or more, and
`paper.theory.simple` has a bound that ends there, for any r. [derived]

>>> assumed = Assumptions(L0=1, L1=0, tau0=0.1, tau1=0)
>>> schedule = Schedule(num_parameters=100, noise_multiplier=1, batch_size=100, num_steps=200)
>>> float(learning_rate(assumed, schedule))
1.0
"""

from __future__ import annotations

import numpy as np

from paper.theory.arguments import Array, Numbers, not_negative, regulariser
from paper.theory.lemmas import alpha, descent_far, descent_near, deviation, smooth_weight_bound
from paper.theory.settings import Assumptions, Schedule


def learning_rate(assumed: Assumptions, schedule: Schedule) -> Array:
    """The eta of Theorem 2, sqrt(2 B^2 / (d sigma^2 T L))."""
    return np.sqrt(2 / (schedule.noise * schedule.num_steps * assumed.L))


def delta_term(assumed: Assumptions, schedule: Schedule, r: Numbers, descent: Numbers) -> Array:
    """The Delta of Theorem 2's proof, with its second term mended (E7).

    `descent` is D_f, the loss at the start less the expected loss at the end.
    """
    r = regulariser(r)
    noisy = np.sqrt(schedule.noise * assumed.L / (2 * schedule.num_steps))
    smooth = assumed.L0 * assumed.kept + assumed.L1 * assumed.tau0
    second = 3 * smooth * assumed.tau0**2 / (2 * r**2 * assumed.kept**3)
    return (
        (not_negative("descent", descent) + 1) * noisy
        + learning_rate(assumed, schedule) * second
        + deviation(assumed, r)
    )


def non_vanishing_bound(assumed: Assumptions, r: Numbers) -> Array:
    """The last term of Theorem 2, 4 E0 / (3 N): what is left for any T."""
    return 4 * deviation(assumed, r) / (3 * descent_far(assumed, r))


def convergence_bound(
    assumed: Assumptions, schedule: Schedule, r: Numbers, descent: Numbers
) -> Array:
    """Theorem 2 with its constants, for T >= `smallest_num_steps`: above E min |grad f|."""
    delta = delta_term(assumed, schedule, r, descent)
    near = np.sqrt(16 * delta / (7 * descent_near(assumed, r)))
    return np.maximum(near, 8 * delta / (3 * descent_far(assumed, r)))


def smallest_num_steps(assumed: Assumptions, schedule: Schedule, r: Numbers) -> Array:
    """Lemma 6's A: from so many steps on, Theorem 2's eta fits Lemma 3 (alpha^2 restored, E9).

    The number of steps in `schedule` is not used.  It is large: 1e6 and more on toy problems (E13).
    """
    factor = alpha(assumed, r)
    smooth = 32 * smooth_weight_bound(assumed, r) ** 2 / (schedule.noise * assumed.L * factor**2)
    noisy = 72 * assumed.L1**2 * schedule.noise / (assumed.L * factor**2)
    return np.maximum(smooth, noisy)
