"""The price of balls in bins: every epoch throws each record into one of its t = 1/q steps.

add-or-remove-one.  The pair of an epoch is P = (1/t) sum_j N(e_j / z, 1) against Q = N(0, 1), in t
dimensions with unit vectors e_j and noise multiplier z (Chua et al. 2024, arXiv:2412.16802; Feldman
and Shenfeld 2025, arXiv:2502.08202).  Under Q the likelihood ratio is S, the mean of t independent
log-normal X_j with mean 1, and the profiles are expectations of convex functions of it,

    D_e(P || Q) = E(S - exp(e))_+       D_e(Q || P) = E(1 - exp(e) S)_+ .

So they become larger, and stay the profiles of a pair, when each X_j is replaced by a variable on a
lattice with the same mean that is larger in convex order: one whose E(X - k)_+ is the chords of the
true one.  Then S is a sum on a lattice.  No bound is taken but this one.

An epoch that was begun counts as a whole one.  Little noise (below about 0.5; below 1.2 with two or
three bins) spreads X too far for the lattice: then an epoch is priced as one Gaussian release,
N(1/z, 1) against N(0, 1), which bounds it by joint convexity.  Rounding of 1e-14 in each step goes
into delta, so that for tiny deltas, below 2e-14 times the number of steps, epsilon is infinite.
"""

import math

import numpy as np
from scipy import special

from psac.accounting.entries import Entry
from psac.accounting.lattice import Sum, Variable
from psac.accounting.losses import Curve, Price, Profile, gaussian

POINTS = 2**20
ZERO = 1e3  # How often S may become 0, where it has an infinite loss, over what does not matter.


def add_or_remove_one(entry: Entry, allowance: float) -> Price:
    bins, epochs = bins_and_epochs(entry)
    allowance *= entry.steps / epochs / 4  # It was meant for one step; we cut in four places.
    mean = 1 / entry.noise_multiplier
    draw, step, lost = _log_normal(mean, bins, allowance)
    all_zero = draw[0] ** bins
    if bins == 1 or all_zero > ZERO * allowance:
        return Profile.symmetric(lambda epsilons: gaussian(epsilons, mean)), epochs
    without = Sum([Variable(0, draw, bins)], step)
    biased = draw * (step * np.arange(len(draw)))  # The bin that has the record.
    with_record = Sum([Variable(0, draw, bins - 1), Variable(0, biased, 1)], step)
    slack = 3 * allowance + without.rounding
    ratios, chances = _ratios(with_record, bins, allowance)
    large = ratios > 1
    removed = _expected_gain(1 / ratios[large][::-1], chances[large][::-1], slack + lost)
    ratios, chances = _ratios(without, bins, allowance)
    small = (ratios > 0) & (ratios < 1)
    added = _expected_gain(ratios[small], chances[small], slack + all_zero)
    return Profile(removed, added), epochs


def bins_and_epochs(entry: Entry) -> tuple[int, int]:
    bins = round(1 / entry.sampling_rate)
    if not math.isclose(bins * entry.sampling_rate, 1, rel_tol=1e-9):
        raise ValueError(
            f"sampling_rate is {entry.sampling_rate!r}, but with balls-in-bins it is 1 over the "
            f"number of steps in an epoch. Pass 1 / {bins} or 1 / {bins + 1}."
        )
    return bins, -(-entry.steps // bins)


def _log_normal(mean: float, bins: int, allowance: float) -> tuple[np.ndarray, float, float]:
    """A variable on a lattice for X = exp(mean x - mean^2 / 2), x normal: masses, step, loss.

    E(X - k)_+ = G(log k; mean) is replaced by its chords, which makes it larger.  Values are cut
    off where that is at most `allowance`: the loss.  The step is a part of the standard deviation,
    and so small that all bins have the value 0 with little probability, if that can be.
    """
    step = min(math.sqrt(math.expm1(min(mean**2, 600.0))), 1.0) / 20
    while gaussian(np.array([-math.log(step)]), mean)[0] ** bins > ZERO * allowance and step > 1e-9:
        step /= 2
    largest = math.exp(min(mean**2 / 2 - mean * float(special.ndtri(allowance)), 600.0))
    size = math.ceil(min(max(largest / step, 100), POINTS))
    step = largest / size
    points = step * np.arange(size + 1)
    with np.errstate(divide="ignore"):
        logs = np.log(points)
    calls, puts = gaussian(logs, mean), points * gaussian(-logs, mean)  # E(X - k)_+, E(k - X)_+
    # Of either, the one that is near 0: their slopes differ by 1.
    slopes = np.where(points[1:] <= 1, np.diff(puts) / step - 1, np.diff(calls) / step)
    bends = np.diff(slopes, prepend=-1.0, append=0.0)
    return np.maximum(bends, 0.0), step, float(calls[-1])


def _ratios(total: Sum, bins: int, allowance: float) -> tuple[np.ndarray, np.ndarray]:
    """Values of the mean over the bins, and their chances."""
    low, high = total.span(0.0, allowance)
    mass = math.exp(total.cumulants(0.0)[0])
    return np.arange(low, high + 1) * (total.step / bins), total.law(0.0, low, high) * mass


def _expected_gain(values: np.ndarray, chances: np.ndarray, slack: float) -> Curve:
    """E(1 - exp(e) value)_+ for ascending values below 1, and something on top."""
    mass = np.concatenate([[0.0], np.cumsum(chances)])
    weighted = np.concatenate([[0.0], np.cumsum(chances * values)])

    def curve(epsilons: np.ndarray) -> np.ndarray:
        count = np.searchsorted(values, np.exp(-epsilons))
        with np.errstate(over="ignore", invalid="ignore"):
            gains = mass[count] - np.exp(epsilons) * weighted[count]
        return slack + np.where(count > 0, np.maximum(gains, 0.0), 0.0)

    return curve
