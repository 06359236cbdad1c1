"""A case: something that users write, by mistake or on purpose, through which records could meet.

A case is a function of a `World`, which gives it batches and takes the sums that come out.  It is
run on neighbouring batches, and what one record has moved is measured in bounds of the clipping
rule.  Allowed outcomes:

    isolated    one record moves the sums of its own step by one bound at most, and no other step
    refused     a PrivacyError, before anything is released
    impossible  there is nothing left by which it could be written; the case says what is missing

Not allowed: `open` (more than that, without a word), `warned` (with a PrivacyWarning), `raised`
(an error that is not psac's, so that a user does not learn what is wrong).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import psac
from tests.privacy.world import BATCHES, World, difference

ALLOWED = ("isolated", "refused", "impossible")
LARGEST = 1.001  # bounds, by the record of a step
ELSEWHERE = 0.001  # bounds, in a step that does not have the record

CLIPPING = (psac.Abadi(bound=0.5), psac.PSAC())
CASES: list[Case] = []


class Impossible(Exception):
    """The case cannot be written any more; says why."""


@dataclass(frozen=True)
class Case:
    cause: str
    title: str
    run: Callable[[World], None]
    outlier: float = 1e3
    defect: str | None = None  # why the core does not hold it yet; the test expects that

    @property
    def id(self) -> str:
        return f"{self.cause}-{self.run.__name__}"


@dataclass
class Outcome:
    kind: str
    ratio: float | None = None
    message: str = ""
    ways: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> bool:
        return self.kind in ALLOWED


def case(
    cause: str, title: str, *, outlier: float = 1e3, defect: str | None = None
) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Puts a function into the table."""

    def put(run: Callable[[World], None]) -> Callable[[World], None]:
        CASES.append(Case(cause, title, run, outlier, defect))
        return run

    return put


def measure(this: Case) -> Outcome:
    """The worst over the rules and the orders of batches; the first refusal ends it."""
    worst = Outcome("isolated", 0.0)
    for clipping in CLIPPING:
        for order in BATCHES:
            outcome = measure_once(this, clipping, order)
            if not outcome.allowed or outcome.kind != "isolated":
                return outcome
            worst.ratio = max(worst.ratio or 0.0, outcome.ratio or 0.0)
            worst.ways = sorted({*worst.ways, *outcome.ways})
    return worst


def measure_once(this: Case, clipping: psac.ClippingRule, order: str) -> Outcome:
    worlds = [World(clipping, order, this.outlier, has_record=has) for has in (True, False)]
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            for world in worlds:
                this.run(world)
        except Impossible as reason:
            return Outcome("impossible", message=str(reason))
        except psac.PrivacyError as error:
            return Outcome("refused", message=plain(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the table
            return Outcome("raised", message=f"{type(error).__name__}: {plain(error)}")
    own, elsewhere = difference(*worlds)
    if worlds[0].replaced:
        own /= 2  # one record goes and another comes
    ratio, ways = max(own, elsewhere), sorted({way for world in worlds for way in world.ways})
    if own <= LARGEST and elsewhere <= ELSEWHERE:
        return Outcome("isolated", ratio, ways=ways)
    told = [plain(w.message) for w in raised if issubclass(w.category, psac.PrivacyWarning)]
    return Outcome("warned" if told else "open", ratio, told[0] if told else "", ways)


def plain(error: object) -> str:
    return " ".join(str(error).split())
