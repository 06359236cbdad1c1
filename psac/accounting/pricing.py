"""The epsilon of entries, by one of the accountants.

pld    privacy loss distributions: tight, for all schemes; the default.  By dp-accounting where it
       knows the scheme, on a lattice of 1e-4, and by `losses` everywhere: the larger one counts, so
       that an error in either is seen.  They agree to six digits; see `theirs` for the exceptions.
rdp    Renyi divergences, by dp-accounting: an upper bound that is larger, for comparison with
       published numbers; only where its event is the same pair of laws

Either gives an upper bound.  Gaussian DP by the central limit theorem gives none, and is refused.
"""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from psac.accounting import losses
from psac.accounting.entries import ADD_OR_REMOVE, REPLACE, Entry
from psac.accounting.schemes import SCHEMES
from psac.checks import number
from psac.errors import PrivacyWarning

if TYPE_CHECKING:
    from dp_accounting import DpEvent

SMALLEST_NOISE = 0.01  # Less noise than that is none: a single step has an epsilon above 5000.
LARGE_EPSILON = 10.0


def price(
    entries: Sequence[Entry],
    delta: float,
    accountant: str,
    *,
    coarseness: float = 1.0,
    first_look: bool = False,
) -> float:
    """Epsilon at `delta` of all entries together.  Arguments are trusted but for the accountant.

    A `first_look` does without the second opinion of dp-accounting: to come near.
    """
    if accountant not in ACCOUNTANTS:
        raise ValueError(_refusal(accountant))
    entries = [entry for entry in entries if entry.steps]
    if not entries:
        return 0.0
    if any(entry.noise_multiplier < SMALLEST_NOISE for entry in entries):
        return math.inf
    delta -= outright(entries)
    if delta <= 0:
        return math.inf
    bound = ACCOUNTANTS[accountant](entries, delta, coarseness)
    if accountant == "pld" and not first_look:
        bound = max(bound, theirs(entries, delta, bound))
    return bound - sum(entry.steps * math.log1p(-entry.delta) for entry in entries)


def outright(entries: Sequence[Entry]) -> float:
    """The chance that any release shows more than its noise allows.

    Let P be what is released with the record, and A, of probability 1 - d, that this does not
    happen.  P is at most its law given A, plus d, and at least (1 - d) times that law: so d comes
    off delta, and -log(1 - d) is added to epsilon.
    """
    return sum(entry.steps * entry.delta for entry in entries)


def _by_losses(entries: Sequence[Entry], delta: float, coarseness: float) -> float:
    allowance = losses.TAIL * delta / sum(entry.steps for entry in entries)
    releases = [
        SCHEMES[entry.sampling, entry.relation].price(entry, allowance)
        for entry in _with_noise_of_their_epoch(entries)
    ]
    return losses.epsilon(releases, delta, coarseness=coarseness)


def theirs(entries: Sequence[Entry], delta: float, ours: float) -> float:
    """What dp-accounting says; 0 where it has no price, or none to rely on.

    That is for full batches alone, whose closed form `losses` has; where a single release costs
    less than its lattice can show; for an epsilon above 50, where the lattice becomes too long; and
    for a delta so small that the rounding of its Fourier transforms shows: for a million releases
    at delta 1e-12 it was seen 6 % too low and, on a coarser lattice, 3.5 times too high.
    """
    events = [SCHEMES[entry.sampling, entry.relation].event for entry in entries]
    visible = all(e.sampling_rate > 20 * losses.STEP * e.noise_multiplier for e in entries)
    sampled = any(e.sampling_rate < 1 for e in entries)
    count = sum(entry.steps for entry in entries)
    small = delta < 1e-13 * max(count, 1000)
    if None in events or not visible or not sampled or ours > 50 or small:
        return 0.0
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    relation = (
        NeighboringRelation.REPLACE_ONE
        if entries[0].relation == REPLACE
        else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant = PLDAccountant(relation, value_discretization_interval=losses.STEP)
    for event, entry in zip(events, entries, strict=True):
        if event is not None:
            accountant.compose(event(entry))
    return float(accountant.get_epsilon(delta))


def _with_noise_of_their_epoch(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, where those of balls-in-bins have the least noise of any of them.

    An epoch of balls-in-bins is priced as a whole, and may be split among entries where its noise
    was changed.  With more noise than it is priced for, it costs less.
    """
    noises = [entry.noise_multiplier for entry in entries if entry.sampling == "balls-in-bins"]
    return [
        dataclasses.replace(entry, noise_multiplier=min(noises))
        if entry.sampling == "balls-in-bins"
        else entry
        for entry in entries
    ]


def _by_renyi_divergences(entries: Sequence[Entry], delta: float, coarseness: float) -> float:
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for entry in entries:
        accountant.compose(renyi_event(entry))
    return float(accountant.get_epsilon(delta))


def renyi_event(entry: Entry) -> "DpEvent":
    """The event of dp-accounting whose Renyi divergences are those of the entry."""
    scheme = SCHEMES[entry.sampling, entry.relation]
    if scheme.event is None or not scheme.renyi:
        known = ", ".join(name for (name, _), other in SCHEMES.items() if other.renyi)
        raise ValueError(
            f"{entry.sampling} under {entry.relation} has no price by Renyi divergences: "
            "dp-accounting has none, or takes half of the sensitivity (google/differential-privacy "
            f"#378). Use the accountant 'pld', or, under {ADD_OR_REMOVE}, one of: {known}."
        )
    return scheme.event(entry)


ACCOUNTANTS: dict[str, Callable[[Sequence[Entry], float, float], float]] = {
    "pld": _by_losses,
    "rdp": _by_renyi_divergences,
}


def _refusal(accountant: object) -> str:
    known = f"Known: {', '.join(ACCOUNTANTS)}."
    if "gdp" in str(accountant).lower():
        return (
            f"accountant {accountant!r} is refused: Gaussian DP by the central limit theorem is an "
            "approximation that comes out too low (5.07 where 5.53 is right), and so guarantees "
            f"nothing. {known}"
        )
    return f"accountant {accountant!r} is unknown. {known}"


def checked_delta(delta: float, num_records: int | None) -> float:
    """The delta, if it is one, with a warning if it allows to publish a record."""
    delta = number(
        "delta",
        delta,
        allowed="(0, 1)",
        advice="It is the chance that the guarantee fails: far below 1 / num_records.",
    )
    if num_records is not None and delta >= 1 / num_records:
        warnings.warn(
            f"delta is {delta:.3g}, which is not below 1 / {num_records}: a mechanism that "
            "publishes a random record would pass. Take a tenth of that or less.",
            PrivacyWarning,
            stacklevel=3,
        )
    return delta


def with_warning(epsilon: float) -> float:
    """The epsilon, with a warning if it is large."""
    if epsilon > LARGE_EPSILON:
        warnings.warn(
            f"epsilon is {epsilon:.3g}: above {LARGE_EPSILON:g} the guarantee says next to "
            "nothing. Use more noise, fewer steps or smaller batches.",
            PrivacyWarning,
            stacklevel=3,
        )
    return epsilon


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within, prices come without warnings: for those that were given before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield
