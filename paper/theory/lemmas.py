"""Lemmas 2 to 5 of the paper: what the weight does to a gradient that is near grad f.

w is DP-PSAC's weight of a sample's gradient g with C = 1, G = |grad f|.  All need 0 < r <= 1.

    Lemma 2   (L0 + L1 G) w            <= smooth_weight_bound
    Lemma 3   holds while eta          <= largest_learning_rate
    Lemma 4   w G                      <= weighted_norm_supremum <= weighted_norm_bound
    Lemma 5   E[w <grad f, g>] - alpha E[w] G^2  >=  3/4 N G              where G >= edge
                                                 >=  7/8 M G^2 - E0       where G <  edge

N is `descent_far`, M is `descent_near`, E0 is `deviation`.

>>> assumed = Assumptions(L0=1, L1=1, tau0=1, tau1=0)
>>> float(weighted_norm_bound(assumed, r=0.25))
3.0
"""

from __future__ import annotations

import numpy as np

from paper.theory.arguments import Array, Numbers, regulariser
from paper.theory.settings import Assumptions, Schedule


def smooth_weight_bound(assumed: Assumptions, r: Numbers) -> Array:
    """Lemma 2.  The first entry of the paper's maximum never exceeds the second. [derived]"""
    root, r = np.sqrt(regulariser(r)), regulariser(r)
    smooth = assumed.L0 * assumed.kept + assumed.L1 * assumed.tau0
    at_peak = (smooth + assumed.L1 * (root - r)) / (assumed.kept * (2 * root - r))
    beyond = (smooth + assumed.L1 * root) / (assumed.kept * root)
    return np.maximum(at_peak, beyond)


def largest_learning_rate(assumed: Assumptions, schedule: Schedule, r: Numbers) -> Array:
    """The condition of Lemma 3 on eta, with the alpha of Lemma 5."""
    factor = alpha(assumed, r)
    with np.errstate(divide="ignore"):  # L1 = 0: the noise sets no limit
        noisy = factor / (6 * assumed.L1 * schedule.noise)
    return np.minimum(factor / (4 * smooth_weight_bound(assumed, r)), noisy)


def weighted_norm_bound(assumed: Assumptions, r: Numbers) -> Array:
    """Lemma 4, as printed: within a factor 2 of the truth."""
    root, r = np.sqrt(regulariser(r)), regulariser(r)
    at_peak = (root - r + assumed.tau0) / ((2 * root - r) * assumed.kept)
    return np.maximum(at_peak, (assumed.tau0 + root) / (assumed.kept * root))


def weighted_norm_supremum(assumed: Assumptions, r: Numbers) -> Array:
    """The least constant that Lemma 4 could have. [derived]

    w G is largest where a sample has the least norm u = (1 - tau1) G - tau0 that G allows it, with
    u the positive root of tau0 u^2 - 2 r (1 - tau0) u - r (r + tau0 - r tau0) = 0.
    """
    r, tau0 = regulariser(r), assumed.tau0
    half = r * (1 - tau0)
    u = (half + np.sqrt(half**2 + tau0 * r * (tau0 + r - tau0 * r))) / tau0
    return (u + tau0) / (assumed.kept * (u + r / (u + r)))


def descent_far(assumed: Assumptions, r: Numbers) -> Array:
    """N(tau0, tau1, r) of Lemma 5 and Theorem 2: descent per unit of G, far from the optimum."""
    r, tau0, kept = regulariser(r), assumed.tau0, assumed.kept
    numerator = 2 * tau0**2 + r * tau0 * kept
    return np.minimum(assumed.edge, numerator / (2 * numerator + r * kept**2))


def descent_near(assumed: Assumptions, r: Numbers) -> Array:
    """M(tau0, tau1, r) of Lemma 5: the descent per unit of G^2, near the optimum."""
    r, tau0 = regulariser(r), assumed.tau0
    return np.minimum(1.0, 1 / (tau0 + r / (r + tau0) + assumed.edge * (1 + assumed.tau1)))


def alpha(assumed: Assumptions, r: Numbers) -> Array:
    """The alpha of Lemma 5: the share of the descent that the terms of second order may use."""
    root, r = np.sqrt(regulariser(r)), regulariser(r)
    share = np.minimum(
        root / (root + assumed.tau0), (2 * root - r) / (root - r + assumed.tau0)
    )  # the second never binds [derived]
    return descent_far(assumed, r) * assumed.kept * share / 4


def deviation(assumed: Assumptions, r: Numbers) -> Array:
    """E0, the term of Lemma 5 that does not vanish, with tau0^2 (1 + tau0) as in its proof (E4)."""
    root, r = np.sqrt(regulariser(r)), regulariser(r)
    tau0, kept = assumed.tau0, assumed.kept
    smallest = tau0 + r * kept / (2 * tau0 + r * kept)
    return 2 * tau0**2 * (1 + tau0) / (kept**3 * smallest * (2 * root - r))
