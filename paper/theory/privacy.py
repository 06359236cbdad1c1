"""Theorem 1, Lemmas 7 and 8, Corollary 1: Theorem 2 at the noise that a budget asks for.

    sigma = c2 q sqrt(T ln(1/delta)) / epsilon,    q = B / records

These are formulas to look at.  The theorem does not name its constant c2; 2 was on the safe side of
an accountant in the settings that were tried.  Real runs ask the accountant (`psac.calibrate`).

>>> float(noise_multiplier(epsilon=2, delta=np.exp(-4), sampling_rate=0.01, num_steps=10_000))
2.0
"""

from __future__ import annotations

import numpy as np

from paper.theory.arguments import Array, Numbers, positive, probability, rate
from paper.theory.lemmas import alpha, smooth_weight_bound
from paper.theory.settings import Assumptions, Schedule

SAFE_C2 = 2.0


def noise_multiplier(
    *,
    epsilon: Numbers,
    delta: Numbers,
    sampling_rate: Numbers,
    num_steps: Numbers,
    c2: Numbers = SAFE_C2,
) -> Array:
    """Theorem 1's sigma."""
    spread = np.sqrt(positive("num_steps", num_steps) * np.log(1 / probability("delta", delta)))
    factor = positive("c2", c2) * rate("sampling_rate", sampling_rate)
    return factor * spread / positive("epsilon", epsilon)


def private_schedule(
    *,
    num_records: Numbers,
    num_parameters: Numbers,
    batch_size: Numbers,
    num_steps: Numbers,
    epsilon: Numbers,
    delta: Numbers,
    c2: Numbers = SAFE_C2,
) -> Schedule:
    """The schedule with Theorem 1's noise: with it, `convergence_bound` is Lemma 7 (E10)."""
    share = positive("batch_size", batch_size) / positive("num_records", num_records)
    if np.any(share > 1):
        raise ValueError(
            f"batch_size is {batch_size} and num_records {num_records}: a batch has at most all "
            "records."
        )
    return Schedule(
        num_parameters=num_parameters,
        batch_size=batch_size,
        num_steps=num_steps,
        noise_multiplier=noise_multiplier(
            epsilon=epsilon, delta=delta, sampling_rate=share, num_steps=num_steps, c2=c2
        ),
    )


def convergence_rate(
    *, num_records: Numbers, num_parameters: Numbers, epsilon: Numbers, delta: Numbers
) -> Array:
    """Corollary 1's rate without its constant, sqrt(sqrt(d ln(1/delta)) / (records epsilon))."""
    return 1 / np.sqrt(_signal(num_records, num_parameters, epsilon, delta))


def records_for_noise(
    assumed: Assumptions,
    r: Numbers,
    *,
    num_parameters: Numbers,
    epsilon: Numbers,
    delta: Numbers,
    c2: Numbers = SAFE_C2,
) -> Array:
    """A' of Lemma 8, with the ln(1/delta) that is missing there (E11): L1 A' records or more."""
    factor = 6 * positive("c2", c2) / alpha(assumed, r)
    return factor * np.sqrt(2 / assumed.L) / _signal(1.0, num_parameters, epsilon, delta)


def smallest_num_records(
    assumed: Assumptions,
    r: Numbers,
    *,
    num_parameters: Numbers,
    epsilon: Numbers,
    delta: Numbers,
    c2: Numbers = SAFE_C2,
    c3: Numbers = 1.0,
) -> Array:
    """Lemma 8 with the condition that the paper calls natural (E11, E12).

    From so many records on, T = c3 records^2 epsilon^2 / (d ln(1/delta)) steps fit Lemma 3.
    One entry is L1 A'; the other, K / (c2 c3 epsilon) sqrt(2 d ln(1/delta) / L), is [derived].
    """
    budget = {"num_parameters": num_parameters, "epsilon": epsilon, "delta": delta}
    noisy = assumed.L1 * records_for_noise(assumed, r, **budget, c2=c2)
    K = 4 * smooth_weight_bound(assumed, r) / alpha(assumed, r)
    unit = np.sqrt(2 / assumed.L) / _signal(1.0, num_parameters, epsilon, delta)
    return np.maximum(noisy, unit * K / (positive("c2", c2) * positive("c3", c3)))


def _signal(records: Numbers, parameters: Numbers, epsilon: Numbers, delta: Numbers) -> Array:
    """records epsilon / sqrt(d ln(1/delta))."""
    amount = positive("num_records", records) * positive("epsilon", epsilon)
    spread = positive("num_parameters", parameters) * np.log(1 / probability("delta", delta))
    return amount / np.sqrt(spread)
