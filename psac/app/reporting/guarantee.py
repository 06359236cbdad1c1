"""What a ledger's epsilon means for one record: how well an attack can work at best.

For data sets with and without a record, (epsilon, delta)-differential privacy gives for every test

    true positive rate <= exp(epsilon) * false positive rate + delta

and for one who begins with a fair coin a chance to guess right of at most

    (exp(epsilon) + delta) / (1 + exp(epsilon))

Both hold at every pair (epsilon, delta) of the ledger, so the least of several is a bound, too:
far tighter than that of the pair that is stated.  It is a bound on every attack, by one who knows
all other records, all settings and every model on the way.

>>> ledger = Ledger(secure=True)
>>> ledger.record(noise_multiplier=1.0, sampling_rate=1.0, num_records=1000)
>>> meaning = Meaning.of(ledger)
>>> round(meaning.guess, 2)  # one Gaussian release: 0.69, the chance that N(0, 1) is below 1/2
0.7
"""

import dataclasses
import math

from psac.accounting import Ledger
from psac.app.reporting.runs import price

DELTAS = (1e-4, 1e-3, 0.01, 0.03, 0.07, *(i / 10 for i in range(1, 10)))
FALSE_POSITIVES = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meaning:
    """`guess`: how often a guess is right at most, 1/2 being a coin.  `found`: the share of records
    that an attack recognises at most, if it is wrong about `FALSE_POSITIVES` of the others."""

    guess: float
    found: float

    @classmethod
    def of(cls, ledger: Ledger) -> "Meaning":
        pairs = [(price(ledger, delta, quick=True), delta) for delta in DELTAS]
        return cls(
            guess=min(_guess(epsilon, delta) for epsilon, delta in pairs),
            found=min(_found(epsilon, delta) for epsilon, delta in pairs),
        )


def _guess(epsilon: float, delta: float) -> float:
    odds = math.exp(-epsilon)
    return min(1.0, (1 + delta * odds) / (1 + odds))


def _found(epsilon: float, delta: float) -> float:
    return min(1.0, math.exp(min(epsilon, 700.0)) * FALSE_POSITIVES + delta)


# How a run protects, in words, by the largest chance to guess right and the largest epsilon: a few
# records may be exposed though most are not.
VERDICTS = (
    (0.60, 3.0, "can hardly tell whether any one record was in the data"),
    (0.75, 6.0, "can only guess whether any one record was in the data"),
    (0.90, 10.0, "may find out whether a record was in the data, but not with certainty"),
    (1.00, math.inf, "may well find out whether a record was in the data: the guarantee is weak"),
)


def rank(guess: float, epsilon: float) -> int:
    """The first row of `VERDICTS` that the run keeps to."""
    fits = (guess <= row[0] and epsilon <= row[1] for row in VERDICTS)
    return next(place for place, fit in enumerate(fits) if fit)
