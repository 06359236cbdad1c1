"""The weight functions as formulas, with C = 1: the paper's w(g) and that of Auto-S.

    PSAC    w(s) = 1 / (s + r / (s + r))        contribution c(s) = s w(s) = s(s+r) / (s(s+r) + r)
    Auto-S  w(s) = 1 / (s + r)

s is the norm of a sample's gradient.  Guarantees for r > 0: c increases, below 1; w(0) = 1; PSAC's
weight exceeds Auto-S's at the same r where s > 1 - r.  Training uses `psac.clipping.rules`, which
holds the bound in floating point too; these are for analysis.

>>> float(weight(0.25, r=0.25).round(4)), float(largest_weight(0.25).round(4))
(1.3333, 1.3333)
"""

from __future__ import annotations

import numpy as np

from paper.theory.arguments import Array, Numbers, not_negative, positive


def weight(norms: Numbers, r: Numbers) -> Array:
    """DP-PSAC's weight w of samples with these gradient norms."""
    norms, r = not_negative("norms", norms), positive("r", r)
    return 1 / (norms + r / (norms + r))


def contribution(norms: Numbers, r: Numbers) -> Array:
    """The norm of DP-PSAC's weighted gradient, s w(s) < 1."""
    return not_negative("norms", norms) * weight(norms, r)


def auto_s_weight(norms: Numbers, r: Numbers) -> Array:
    """The weight of Auto-S and NSGD, 1 / (s + r)."""
    return 1 / (not_negative("norms", norms) + positive("r", r))


def largest_weight(r: Numbers) -> Array:
    """DP-PSAC's largest weight: 1 / (2 sqrt(r) - r) at s = sqrt(r) - r for r <= 1, else 1 at 0."""
    r = positive("r", r)
    within = np.minimum(r, 1.0)
    return 1 / (2 * np.sqrt(within) - within)


def heaviest_norm(r: Numbers) -> Array:
    """The norm that has the largest weight: sqrt(r) - r for r <= 1, else 0."""
    within = np.minimum(positive("r", r), 1.0)
    return np.sqrt(within) - within


def matched_regulariser(r: Numbers) -> Array:
    """The r of the Auto-S whose largest weight is that of DP-PSAC with this r. [derived]"""
    return 1 / largest_weight(r)
