"""The price of Poisson sampling: each record enters a step with chance q, whatever the others do.

z is the noise multiplier, and G(e; m) the profile of N(m, 1) against N(0, 1).

add-or-remove-one.  The pair is P = (1 - q) N(0, 1) + q N(1/z, 1) against Q = N(0, 1), exactly (Zhu,
    Dong and Wang 2022, arXiv:2106.08567, theorem 11).  One way, for e >= 0,
        D_e(P || Q) = q G(log(1 + (exp(e) - 1) / q); 1/z),
    and the other way, with u = (exp(-e) - 1 + q) / q,
        D_e(Q || P) = exp(e) q u G(-log u; 1/z) where u > 0, else 0.

replace-one.  A record of norm C becomes its opposite: (1 - q) N(0, 1) + q N(1/z, 1) against
    (1 - q) N(0, 1) + q N(-1/z, 1), as in dp-accounting.  The likelihood ratio is monotone, so the
    profile is a difference of distribution functions at the point where it is exp(e).
"""

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from psac.accounting.entries import Entry
from psac.accounting.losses import Price, Profile, gaussian

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def add_or_remove_one(entry: Entry, allowance: float) -> Price:
    return sampled(entry, 1 / entry.noise_multiplier)


def sampled(entry: Entry, mean: float) -> Price:
    """The price when a record that is drawn moves the release by `mean` standard deviations."""
    rate = entry.sampling_rate
    if rate == 1.0:  # Gaussians compose to a Gaussian.
        mean = mean * math.sqrt(entry.steps)
        return Profile.symmetric(lambda epsilons: gaussian(epsilons, mean)), 1

    def added(epsilons: np.ndarray) -> np.ndarray:
        ratio = np.maximum((rate + np.expm1(-epsilons)) / rate, 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inside = np.exp(epsilons) * rate * ratio * gaussian(-np.log(ratio), mean)
        return np.where(ratio > 0, inside, 0.0)

    def removed(epsilons: np.ndarray) -> np.ndarray:
        return rate * gaussian(amplified(epsilons, rate), mean)

    return Profile(removed, added), entry.steps


def amplified(epsilons: np.ndarray, rate: float) -> np.ndarray:
    """log(1 + (exp(e) - 1) / rate), without overflow."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(0.0, epsilons + np.log(-np.expm1(-epsilons)) - math.log(rate))


def replace_one(entry: Entry, allowance: float) -> Price:
    mean, rate = 1 / entry.noise_multiplier, entry.sampling_rate
    if rate == 1.0:
        return sampled(entry, 2 * mean)
    log_odds = math.log1p(-rate) - math.log(rate)

    def curve(epsilons: np.ndarray) -> np.ndarray:
        # The loss is at least e up to x, where exp(2 mean x) solves a quadratic equation.
        with np.errstate(divide="ignore", invalid="ignore"):
            log_sinh = epsilons / 2 + np.log(-np.expm1(-epsilons) / 2)
            middle = mean**2 / 2 + log_odds + log_sinh
            asinh = np.logaddexp(np.logaddexp(0.0, 2 * middle) / 2, middle)
            x = -(asinh + epsilons / 2) / mean
            upper = (1 - rate) * special.ndtr(x) + rate * special.ndtr(x + mean)
            lower = np.logaddexp(
                math.log1p(-rate) + special.log_ndtr(x),
                math.log(rate) + special.log_ndtr(x - mean),
            )
            values = np.maximum(upper - np.exp(epsilons + lower), 0.0)
        return np.where(np.isinf(epsilons), 0.0, values)

    return Profile.symmetric(curve), entry.steps


def event(entry: Entry) -> "DpEvent":
    import dp_accounting

    step = dp_accounting.GaussianDpEvent(entry.noise_multiplier)
    if entry.sampling_rate < 1:  # Else it knows that Gaussians compose to a Gaussian.
        step = dp_accounting.PoissonSampledDpEvent(entry.sampling_rate, step)
    return dp_accounting.SelfComposedDpEvent(step, entry.steps)
