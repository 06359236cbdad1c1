"""What the epsilon of a ledger means for one record: the best that any attack can do.

For data sets with and without a record, (epsilon, delta)-differential privacy gives for every test

    true positive rate <= exp(epsilon) * false positive rate + delta

and, if the record was included with probability 1/2, a probability of a correct guess of at most

    (exp(epsilon) + delta) / (1 + exp(epsilon))

Both hold for every pair (epsilon, delta) of the ledger, so the minimum over several pairs is also a
bound, and far tighter than that of one pair.  It bounds every attack, even by someone who knows all
other records, all settings and every intermediate model.

>>> ledger = Ledger(secure=True)
>>> ledger.record(noise_multiplier=1.0, sampling_rate=1.0, num_records=1000)
>>> meaning = Meaning.of(ledger)
>>> round(meaning.guess, 2)  # one Gaussian release; exactly P(N(0, 1) < 1/2) = 0.69
0.7
"""

import dataclasses
import math

from psac.accounting import Ledger
from psac.app.training.price import price

DELTAS = (1e-4, 1e-3, 0.01, 0.03, 0.07, *(i / 10 for i in range(1, 10)))
FALSE_POSITIVES = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meaning:
    """Upper bounds: `guess` for the probability of a correct guess, `true_positives` for the true
    positive rate at a false positive rate of `FALSE_POSITIVES`."""

    guess: float
    true_positives: float

    @classmethod
    def of(cls, ledger: Ledger) -> "Meaning":
        pairs = [(price(ledger, delta, quick=True), delta) for delta in DELTAS]
        return cls(
            guess=min(_guess(epsilon, delta) for epsilon, delta in pairs),
            true_positives=min(_true_positives(epsilon, delta) for epsilon, delta in pairs),
        )


def _guess(epsilon: float, delta: float) -> float:
    odds = math.exp(-epsilon)
    return min(1.0, (1 + delta * odds) / (1 + odds))


def _true_positives(epsilon: float, delta: float) -> float:
    return min(1.0, math.exp(min(epsilon, 700.0)) * FALSE_POSITIVES + delta)


# Words for a guarantee, by its largest guess and its largest epsilon.  Both count, as a few records
# may be exposed although most are not.
VERDICTS = (
    (0.60, 3.0, "can hardly tell whether any one record was in the data"),
    (0.75, 6.0, "can only guess whether any one record was in the data"),
    (0.90, 10.0, "may find out whether a record was in the data, but not with certainty"),
    (1.00, math.inf, "may well find out whether a record was in the data: the guarantee is weak"),
)


def rank(guess: float, epsilon: float) -> int:
    """The first row of `VERDICTS` whose limits hold."""
    fits = (guess <= row[0] and epsilon <= row[1] for row in VERDICTS)
    return next(place for place, fit in enumerate(fits) if fit)
