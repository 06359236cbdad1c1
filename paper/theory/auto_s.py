"""Lemmas 2 to 5 for Auto-S and NSGD, w = 1 / (s + r), by the steps of the paper for DP-PSAC.

Nothing here is in the paper: its Table 1 quotes O(r^-1) from elsewhere.  With the same proof both
rules can be compared number by number, and no r > tau0 is needed. [derived]

    Lemma 2   (L0 + L1 G) w  <= max((L0 + L1 tau0 / (1 - tau1)) / r, L1 / (1 - tau1))
    Lemma 4   w G            <= max(1, tau0 / r) / (1 - tau1)
    Lemma 5   N = tau0 / (2 tau0 + r (1 - tau1)),    E0 = 2 tau0^3 / ((1 - tau1)^3 r (tau0 + r))

Guarantees, as in Lemma 5 with alpha = N (1 - tau1) min(1, r / tau0) / 4, for any r > 0; Lemma 3
holds for r <= 1 with these constants in the place of DP-PSAC's.

At equal r DP-PSAC's bound is lower where r is small, as r^-1/2 is below r^-1.  At equal largest
weight (`matched_regulariser`) that of Auto-S is lower for all r, tau0, tau1.
"""

from __future__ import annotations

import numpy as np

from paper.theory.arguments import Array, Numbers, positive
from paper.theory.settings import Assumptions


def auto_s_smooth_weight_bound(assumed: Assumptions, r: Numbers) -> Array:
    """Lemma 2 for Auto-S."""
    near = (assumed.L0 + assumed.L1 * assumed.edge) / positive("r", r)
    return np.maximum(near, assumed.L1 / assumed.kept)


def auto_s_weighted_norm_supremum(assumed: Assumptions, r: Numbers) -> Array:
    """Lemma 4 for Auto-S, with the least constant that it can have."""
    return np.maximum(1.0, assumed.tau0 / positive("r", r)) / assumed.kept


def auto_s_descent_far(assumed: Assumptions, r: Numbers) -> Array:
    """N of Auto-S."""
    return assumed.tau0 / (2 * assumed.tau0 + positive("r", r) * assumed.kept)


def auto_s_alpha(assumed: Assumptions, r: Numbers) -> Array:
    """alpha of Auto-S."""
    r = positive("r", r)
    share = np.minimum(1.0, r / assumed.tau0)
    return auto_s_descent_far(assumed, r) * assumed.kept * share / 4


def auto_s_deviation(assumed: Assumptions, r: Numbers) -> Array:
    """E0 of Auto-S."""
    r, tau0 = positive("r", r), assumed.tau0
    return 2 * tau0**3 / (assumed.kept**3 * r * (tau0 + r))


def auto_s_non_vanishing_bound(assumed: Assumptions, r: Numbers) -> Array:
    """4 E0 / (3 N) of Auto-S, of order r^-1."""
    return 4 * auto_s_deviation(assumed, r) / (3 * auto_s_descent_far(assumed, r))
