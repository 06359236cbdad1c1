"""The price of batches of a fixed size: a record that is drawn pushes another one out.

So the sum moves by up to 2 C where Poisson sampling moves it by C; z is the noise over C.

Without replacement, add-or-remove-one.  Poisson with the noise multiplier z / 2 (Zhu, Dong and Wang
2022, arXiv:2106.08567, theorem 11: a pair for replaced records of the batch becomes, mixed as in
Poisson sampling, one for added and removed records of the data).

With replacement, replace-one.  The literal algorithm of the DP-PSAC paper: m draws from n records.
Balle, Barthe and Gaboardi 2018 (arXiv:1807.01647, theorem 10) bound it from above.  The record is
drawn K times, K binomial(m, 1/n), and at least once with chance r = 1 - (1 - 1/n)^m.  Write
P = (1 - r) M0 + r M1 and Q = (1 - r) M0 + r M1', where M1 is given K >= 1.  For e >= 0 and
exp(f) = 1 + (exp(e) - 1) / r, with b = exp(e - f), advanced joint convexity is

    D_e(P || Q) = r D_f(M1 || (1 - b) M0 + b M1')
               <= r (1 - b) D_f(M1 || M0) + r b D_f(M1 || M1').

M1 and M0 can be coupled so that they differ by K exchanged draws, and so can M1 and M1'.  An
exchange moves the sum by at most 2 C, K of them by 2 K C.  Divergences are jointly convex, so we
average over K, with G(f; m) the profile of N(m, 1) against N(0, 1): either one is at most

    sum_k P(K = k | K >= 1) G(f; 2k/z),     hence     D_e(P || Q) <= sum_k P(K = k) G(f; 2k/z).

For e >= 0 this is convex in exp(e), as exp(f) is affine in it.  The relation is symmetric, so it
also bounds D_e(Q || P), and D_-e(P || Q) = 1 - exp(-e) + exp(-e) D_e(Q || P) extends it to e < 0,
where it is convex too; at e = 0 the slope jumps upwards, by (1/r - 1) times its value there.  So it
is convex everywhere: a profile, with a pair of laws that composes.  The truth is lower: with 512 of
60000 records, 4687 steps, z = 1.068 and delta = 1e-5, 21.3 <= epsilon <= 32.9, and we say 32.9.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from psac.accounting import poisson
from psac.accounting.entries import Entry
from psac.accounting.losses import Price, Profile, gaussian
from psac.checks import positive

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def without_replacement(entry: Entry, allowance: float) -> Price:
    return poisson.sampled(entry, 2 / entry.noise_multiplier)


def with_replacement(entry: Entry, allowance: float) -> Price:
    records, draws = _records_and_draws(entry)
    drawn = -math.expm1(draws * math.log1p(-1 / records))
    chances, chance = [], math.exp(draws * math.log1p(-1 / records))
    while special.bdtrc(len(chances), draws, 1 / records) > allowance / 4:
        chance *= (draws - len(chances)) / (len(chances) + 1) / (records - 1)
        chances.append(chance)
    beyond = float(special.bdtrc(len(chances), draws, 1 / records))

    def curve(epsilons: np.ndarray) -> np.ndarray:
        amplified, total = poisson.amplified(epsilons, drawn), np.full_like(epsilons, beyond)
        for times, chance in enumerate(chances, 1):
            total += chance * gaussian(amplified, 2 * times / entry.noise_multiplier)
        return total

    return Profile.symmetric(curve), entry.steps


def _records_and_draws(entry: Entry) -> tuple[int, int]:
    records = positive(
        "num_records", entry.num_records, least=2, advice=f"The price of {entry.sampling} needs it."
    )
    draws = round(entry.sampling_rate * records)
    if draws < 1 or not math.isclose(draws, entry.sampling_rate * records, rel_tol=1e-6):
        raise ValueError(
            f"sampling_rate {entry.sampling_rate!r} of {records} records is "
            f"{entry.sampling_rate * records:.6g}, not a whole number of draws. Pass "
            f"sampling_rate = batch_size / num_records, such as {max(draws, 1)} / {records}."
        )
    return records, draws


def without_replacement_event(entry: Entry) -> "DpEvent":
    """Poisson with half the noise, which has this price."""
    return poisson.event(dataclasses.replace(entry, noise_multiplier=entry.noise_multiplier / 2))
