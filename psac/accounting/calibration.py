"""From a plan to its epsilon, and from an epsilon to the noise that keeps it.

All arguments are given by name: the noise multiplier (standard deviation of the noise over the
clipping bound), the sampling rate (how often a record is in a step), the number of steps, delta.
`sampling` is a scheme or its name, and `relation` is the neighbouring relation, by default that of
the scheme.  `num_records` is needed for fixed-size-with-replacement; otherwise it only serves to
warn of a delta that is too large.

>>> plan = dict(sampling_rate=512 / 60_000, steps=4687, delta=1e-5)
>>> round(epsilon(noise_multiplier=1.0, **plan), 2)
3.39
>>> round(calibrate(epsilon=3.0, **plan), 3)
1.068
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psac.accounting import pricing, schemes
from psac.accounting.entries import Entry
from psac.accounting.ledger import Ledger
from psac.accounting.losses import gaussian
from psac.checks import number, positive, unknown
from psac.sampling import Sampling

TOLERANCE = 1e-4  # A calibrated epsilon lies at most this much, relatively, below its target.
COARSE = 8.0
LARGEST_EPSILON = 1e6


def epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    sampling: Sampling | str = "poisson",
    relation: str | None = None,
    accountant: str = "pld",
    num_records: int | None = None,
) -> float:
    """The privacy loss of a run, without running it.

    Args:
        noise_multiplier: Standard deviation of the noise over the bound.
        sampling_rate: Probability that a record is in a step: batch size over number of records.
        steps: Number of logical steps.
        delta: Probability that the guarantee fails.
        sampling: A scheme such as `psac.BallsInBins()`, or its name.
        relation: "add-or-remove-one" or "replace-one". The default is that of the sampling.
        accountant: "pld", a tight upper bound, or "rdp", for comparison with published numbers.
        num_records: Needed for some schemes; also used to warn of a delta that is too large.

    Returns:
        An upper bound on epsilon. No steps cost 0, and steps without noise cost infinity.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range, or the scheme has no price under this relation.

    Examples:
        >>> plan = dict(sampling_rate=0.01, steps=1000, delta=1e-5)
        >>> f"{epsilon(noise_multiplier=1.0, **plan):.2f}"
        '1.83'
    """
    entry = schemes.entry(
        sampling=sampling,
        relation=relation,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        num_records=num_records,
        steps=_steps(steps),
    )
    delta = pricing.checked_delta(delta, num_records)
    return pricing.with_warning(pricing.price([entry], delta, accountant))


def calibrate(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    sampling: Sampling | str = "poisson",
    relation: str | None = None,
    accountant: str = "pld",
    num_records: int | None = None,
    after: Ledger | None = None,
) -> float:
    """The noise multiplier with which a run stays within its budget.

    Args:
        epsilon: The budget.
        delta: Probability that the guarantee fails.
        sampling_rate: Probability that a record is in a step: batch size over number of records.
        steps: Number of logical steps.
        sampling: A scheme such as `psac.BallsInBins()`, or its name.
        relation: "add-or-remove-one" or "replace-one". The default is that of the sampling.
        accountant: "pld" or "rdp".
        num_records: Needed for some schemes; also used to warn of a delta that is too large.
        after: Earlier releases of the same records. The budget covers both together.

    Returns:
        The noise multiplier. `psac.epsilon` with it is at most the budget, and within 0.01 % of it.
        If a price jumps, as that of balls in bins does at little noise, it may be further below.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range, or no noise meets the budget.

    Examples:
        >>> noise = calibrate(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=1000)
        >>> f"{noise:.3f}"
        '0.814'
    """
    target = number(
        "epsilon", epsilon, allowed=f"(0, {LARGEST_EPSILON:g}]", advice="Usual are 1 to 8."
    )
    entry = schemes.entry(
        sampling=sampling,
        relation=relation,
        noise_multiplier=1.0,
        sampling_rate=sampling_rate,
        num_records=num_records,
        steps=positive("steps", steps, advice="No step needs no noise."),
    )
    delta = pricing.checked_delta(delta, num_records)
    pricing.with_warning(target)

    earlier = after.entries if after is not None else ()
    _refuse_spent(earlier, target, delta, accountant)

    def spent(noise_multiplier: float, **settings: Any) -> float:
        noisy = dataclasses.replace(entry, noise_multiplier=noise_multiplier)
        return pricing.price([*earlier, noisy], delta, accountant, **settings)

    near = _first_guess(target, delta, entry)
    for coarseness in (COARSE, 1.0):
        look = functools.partial(spent, coarseness=coarseness, first_look=True)
        near = _solve(look, target, near)
    # What is reported has a second opinion, which may be larger by a millionth part.
    return near if spent(near) <= target else _solve(spent, target, near * (1 + TOLERANCE / 4))


def _refuse_spent(earlier: Sequence[Entry], target: float, delta: float, accountant: str) -> None:
    if earlier and (spent := pricing.price(earlier, delta, accountant)) >= target:
        raise ValueError(
            f"epsilon is {target:g}, but earlier releases already cost {spent:.4g} at this delta: "
            "nothing is left. Choose a larger epsilon, or release less."
        )


def _first_guess(target: float, delta: float, entry: Entry) -> float:
    """The noise by the central limit theorem: too little, but near."""
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        exceeds = gaussian(np.array([target]), math.exp(middle))[0] > delta
        low, high = (low, middle) if exceeds else (middle, high)
    ratio = math.exp(low) / (entry.sampling_rate * math.sqrt(entry.steps))
    return min(max(math.log1p(ratio**2) ** -0.5, 2 * pricing.SMALLEST_NOISE), 1e9)


def _solve(price: Callable[[float], float], target: float, start: float) -> float:
    """The noise at which a price that falls with it is just below the target.

    False position, on logarithms of both, where the price is nearly straight; ends that stay are
    halved in weight (the Illinois rule).
    """
    low: tuple[float, float] | None = None  # (log noise, how far the price is off) above
    high: tuple[float, float] | None = None  # and at or below it
    log_noise, gap = math.log(start), 0.0
    for trial in range(60):
        previous, spent = gap, price(math.exp(log_noise))
        gap = max(min(math.log(spent / target), 20.0), -20.0) if spent > 0 else -20.0
        if -TOLERANCE <= gap <= 0:
            return math.exp(log_noise)
        if gap > 0:
            low = (log_noise, gap)
            high = (high[0], high[1] / 2) if high and previous > 0 else high
        else:
            high = (log_noise, gap)
            low = (low[0], low[1] / 2) if low and previous < 0 else low
        if low and high:
            if high[0] - low[0] < 1e-7:
                break
            share = (low[1] + TOLERANCE / 2) / (low[1] - high[1])
            log_noise = low[0] + min(max(share, 0.02), 0.98) * (high[0] - low[0])
        else:
            # Longer and longer, as long as both ends are not found: a price may be flat.
            move = min(1.5 * abs(gap) + TOLERANCE, 1.0) * 2 ** max(0, trial - 2)
            log_noise = min(max(log_noise + math.copysign(move, gap), -700.0), 700.0)
    if high is None:
        raise ValueError(
            f"no noise was found that keeps epsilon {target:g}: the accountant gives more even for "
            f"a noise multiplier of {math.exp(log_noise):.3g}. Choose a larger delta or epsilon."
        )
    return math.exp(high[0])


def _steps(steps: int) -> int:
    return positive("steps", steps, least=0, advice="It counts optimizer steps.")


# ---- Tuning

SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}


def tuned_epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    expected_runs: float,
    distribution: str = "logarithmic",
    sampling: Sampling | str = "poisson",
    relation: str | None = None,
    num_records: int | None = None,
) -> float:
    """What it costs to train a random number of times and release only the best run.

    The number of runs must be drawn beforehand from `distribution`, with mean `expected_runs`, and
    stay secret; each run must choose its settings at random; nothing of the other runs may be
    released (Papernot and Steinke 2022, arXiv:2110.03620).  Priced by Renyi divergences, through
    dp-accounting.  This costs far less than releasing all runs: where one run has an epsilon of 3,
    ten expected runs cost 4.9 (logarithmic) or 5.7 (geometric) instead of 11.

    >>> plan = dict(sampling_rate=512 / 60_000, steps=4687, delta=1e-5, noise_multiplier=1.1234)
    >>> round(tuned_epsilon(expected_runs=10, **plan), 2)
    4.9
    """
    if distribution not in SHAPES:
        raise ValueError(unknown("distribution", distribution, SHAPES))
    least = "(0, inf)" if distribution == "poisson" else "(1, inf)"
    mean = number(
        "expected_runs", expected_runs, allowed=least, advice="One run alone has epsilon(...)."
    )
    entry = schemes.entry(
        sampling=sampling,
        relation=relation,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        num_records=num_records,
        steps=_steps(steps),
    )
    delta = pricing.checked_delta(delta, num_records)
    return pricing.with_warning(_selected(entry, delta, mean, SHAPES[distribution]))


def _selected(entry: Entry, delta: float, mean: float, shape: float) -> float:
    event = pricing.renyi_event(entry)
    if entry.noise_multiplier < pricing.SMALLEST_NOISE or entry.steps == 0:
        return pricing.price([entry], delta, "rdp")
    from dp_accounting.dp_event import RepeatAndSelectDpEvent

    return pricing.renyi_epsilon([RepeatAndSelectDpEvent(event, mean, shape)], delta)


# ---- Several queries on one batch


def compose_noise(*noise_multipliers: float) -> float:
    """The noise multiplier z of several Gaussian queries on one batch, taken as one query.

    z^-2 is the sum of their z_i^-2, where each z_i is a noise over its own query's sensitivity.

    >>> round(compose_noise(1.0, 1.0), 4)
    0.7071
    """
    if not noise_multipliers:
        raise ValueError("compose_noise was given no noise multiplier: pass one for each query.")
    noises = [_noise(f"noise multiplier {k}", z) for k, z in enumerate(noise_multipliers)]
    if 0.0 in noises:
        return 0.0
    least = min(noises)
    return least / math.sqrt(sum((least / z) ** 2 for z in noises))


def without_side_query(total: float, side: float) -> float:
    """The noise multiplier left for the gradient, of a `total`, beside a query that has `side`.

    The inverse of `compose_noise`: compose_noise(without_side_query(total, side), side) == total.

    >>> round(without_side_query(1.0, 25.6), 6)
    1.000764
    """
    total, side = _noise("total", total), _noise("side", side)
    if not side > total:
        raise ValueError(
            f"the side query has a noise multiplier of {side:g}, and both together must have "
            f"{total:g}: nothing is left for the gradient. Give the side query more noise."
        )
    return total / math.sqrt((1 - total / side) * (1 + total / side))


def _noise(name: str, value: float) -> float:
    return number(name, value, allowed="[0, inf)", advice="It is noise over sensitivity.")
