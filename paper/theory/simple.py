"""A second bound, for any rule: shorter to prove, smaller, and without a term in 1/r. [derived]

For a rule with s w(s) <= 1 and E w <grad f, g> >= N G wherever G >= tau0 / (1 - tau1), such as
DP-PSAC with `descent_far` and Auto-S with `auto_s_descent_far`; with S = 1 + d sigma^2 / B^2 and
eta <= N / (L1 S):

    E min_t G  <=  tau0 / (1 - tau1)  +  2 D_f / (N T eta)  +  L0 eta S / N

Proof.  While G >= tau0 / (1 - tau1), a step lowers f by eta N G - (L0 + L1 G) eta^2 S / 2 or more
in expectation, and the choice of eta leaves eta N G / 2 - L0 eta^2 S / 2.  Sum over T steps.

>>> assumed = Assumptions(L0=1, L1=0, tau0=1, tau1=0.5)
>>> schedule = Schedule(num_parameters=100, noise_multiplier=1, batch_size=100, num_steps=1e12)
>>> round(float(simple_bound(assumed, schedule, descent_far=0.4, descent=1)), 4)
2.0
"""

from __future__ import annotations

import numpy as np

from paper.theory.arguments import Array, Numbers, positive
from paper.theory.settings import Assumptions, Schedule


def simple_learning_rate(
    assumed: Assumptions, schedule: Schedule, *, descent_far: Numbers, descent: Numbers
) -> Array:
    """The eta for which the bound is lowest, within eta <= N / (L1 S)."""
    moved = 1 + schedule.noise
    best = np.sqrt(2 * positive("descent", descent) / (schedule.num_steps * assumed.L0 * moved))
    with np.errstate(divide="ignore"):  # L1 = 0 sets no limit
        return np.minimum(best, positive("descent_far", descent_far) / (assumed.L1 * moved))


def simple_bound(
    assumed: Assumptions,
    schedule: Schedule,
    *,
    descent_far: Numbers,
    descent: Numbers,
    learning_rate: Numbers | None = None,
) -> Array:
    """Above E min G.  `descent` is D_f, `descent_far` is N; eta is the best by default."""
    settings = {"descent_far": descent_far, "descent": descent}
    best = simple_learning_rate(assumed, schedule, **settings)
    eta = best if learning_rate is None else positive("learning_rate", learning_rate)
    n, moved = positive("descent_far", descent_far), 1 + schedule.noise
    if np.any(eta * assumed.L1 * moved > n * (1 + 1e-12)):
        raise ValueError(
            "learning_rate is too large for this bound: it must be at most N / (L1 S), "
            f"{np.min(n / (assumed.L1 * moved)):g} here."
        )
    first = 2 * positive("descent", descent) / (n * schedule.num_steps * eta)
    return assumed.edge + first + assumed.L0 * eta * moved / n
