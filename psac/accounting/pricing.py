"""The epsilon of entries, by one of the accountants.

pld    privacy loss distributions: tight, for all schemes; the default.  Computed by `losses`, and
       by dp-accounting where it has the scheme; the larger result counts, so an error in one of
       them cannot make epsilon too small.  They agree to six digits; see `theirs` for exceptions.
rdp    Renyi divergences, by dp-accounting: a larger upper bound, for comparison with published
       numbers; only where dp-accounting has the same pair of distributions

Both are upper bounds.  Gaussian DP by the central limit theorem is none, and is refused.
"""

import contextlib
import dataclasses
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from psac.accounting import losses
from psac.accounting.entries import Entry
from psac.accounting.schemes import SCHEMES
from psac.checks import number
from psac.errors import PrivacyWarning, warn
from psac.sampling import ADD_OR_REMOVE, REPLACE

if TYPE_CHECKING:
    from dp_accounting import DpEvent

SMALLEST_NOISE = 0.01  # Less counts as none: a single step has an epsilon above 5000.
LARGE_EPSILON = 10.0


def price(
    entries: Sequence[Entry],
    delta: float,
    accountant: str,
    *,
    coarseness: float = 1.0,
    first_look: bool = False,
) -> float:
    """Epsilon at `delta` of all entries together.  Only the accountant's name is checked.

    A `first_look` leaves out the second opinion of dp-accounting.
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
    """The probability that any release shows more than its noise allows.

    Let P be the distribution of what is released with the record, and A the event, of probability
    1 - d, that this does not happen.  P is at most its law given A, plus d, and at least (1 - d)
    times that law.  So d is subtracted from delta, and -log(1 - d) added to epsilon.
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
    """The epsilon of dp-accounting, or 0 where it has none or is not reliable.

    It is not asked about full batches, whose closed form `losses` has; about releases that cost
    less than its lattice resolves; about an epsilon above 50, where the lattice becomes too long;
    nor at a delta so small that the rounding of its Fourier transforms matters: for a million
    releases at delta 1e-12 it was 6 % too low and, on a coarser lattice, 3.5 times too high.
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
    """The entries, with the least noise of any of them for all those of balls-in-bins.

    An epoch of balls-in-bins is priced as a whole, but a change of noise splits it among entries.
    With more noise than it is priced for, it costs less.
    """
    noises = [entry.noise_multiplier for entry in entries if entry.sampling == "balls-in-bins"]
    return [
        dataclasses.replace(entry, noise_multiplier=min(noises))
        if entry.sampling == "balls-in-bins"
        else entry
        for entry in entries
    ]


def _by_renyi_divergences(entries: Sequence[Entry], delta: float, coarseness: float) -> float:
    return renyi_epsilon([renyi_event(entry) for entry in entries], delta)


def renyi_epsilon(events: Sequence["DpEvent"], delta: float) -> float:
    """Epsilon by the RDP accountant of dp-accounting.

    It logs every order of the divergence that it cannot compute and leaves out.  The least bound of
    the other orders is still a bound, so that is not shown.
    """
    from dp_accounting.rdp import RdpAccountant

    accountant, log = RdpAccountant(), logging.getLogger("absl")
    log.addFilter(_is_important)
    try:
        for event in events:
            accountant.compose(event)
        return float(accountant.get_epsilon(delta))
    finally:
        log.removeFilter(_is_important)


def _is_important(message: logging.LogRecord) -> bool:
    return "failed to converge" not in message.getMessage()


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
            f"approximation that comes out too low (5.07 instead of 5.53). {known}"
        )
    return f"accountant {accountant!r} is unknown. {known}"


def checked_delta(delta: float, num_records: int | None) -> float:
    """The delta, with a warning if it is large enough to publish a record."""
    delta = number(
        "delta",
        delta,
        allowed="(0, 1)",
        advice="It is the chance that the guarantee fails: far below 1 / num_records.",
    )
    if num_records is not None and delta >= 1 / num_records:
        warn(
            f"delta is {delta:.3g}, which is not below 1 / {num_records}: it would allow a "
            "mechanism that publishes a random record. Choose a tenth of that or less.",
        )
    return delta


def with_warning(epsilon: float) -> float:
    """The epsilon, with a warning if it is large."""
    if epsilon > LARGE_EPSILON:
        warn(
            f"epsilon is {epsilon:.3g}: above {LARGE_EPSILON:g} the guarantee is nearly void. Use "
            "more noise, fewer steps or smaller batches.",
        )
    return epsilon


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppresses the warnings of prices, where they have been given before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield
