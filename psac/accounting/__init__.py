"""Accounting: the ledger of what was released, its epsilon, and the noise for an epsilon.

Guarantees: an epsilon is an upper bound for the scheme by which batches were drawn, under the
relation that it is stated for, whatever the numbers: approximations, truncations and rounding all
are upwards.  What cannot be priced is refused, never approximated.  Left to others: that noise,
clipping and draws are what the ledger was told.

    calibration  epsilon of a plan, noise for an epsilon, tuning, several queries on one batch
    ledger       what a run released
    pricing      the accountants
    schemes      the price of one step, by how its batch was drawn
    losses       from one step to many: privacy loss distributions
    lattice      sums of many independent variables
    entries      what is written down
"""

from psac.accounting.calibration import (
    epsilon,
    calibrate,
    tuned_epsilon,
    compose_noise,
    without_side_query,
)
from psac.accounting.ledger import Ledger
from psac.accounting.entries import Entry
from psac.errors import PrivacyWarning

__all__ = [
    "epsilon",
    "calibrate",
    "tuned_epsilon",
    "compose_noise",
    "without_side_query",
    "Ledger",
    "Entry",
    "PrivacyWarning",
]
