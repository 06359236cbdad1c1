"""A case: something that users write, by mistake or on purpose, through which records could meet.

A case is a function of a `World`, which gives it batches and takes the sums that come out.  It is
run on neighbouring batches, and what one record has moved is measured in bounds of the clipping
rule.  Allowed outcomes:

    isolated    one record moves the sums of its own step by one bound at most, and no other step
    refused     a PrivacyError, before anything is released
    impossible  there is nothing left by which it could be written; the case says what is missing
    stopped     the function's own error, as plain torch would raise it; nothing is released
    beyond      code of the user's that acts on the model behind the noise: psac does not judge it

A case may say that it is `warned`: what changes outside of the function from step to step is in the
ledger and in a PrivacyWarning, and not refused, because annealed weights look like the mean of a
batch.  Not allowed: `open` (more than one bound, without a word), `raised` (an error that is not
psac's, so that a user does not learn what is wrong), and `warned` anywhere else.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psac
from tests.privacy.world import World, difference

KINDS = ("impossible", "isolated", "stopped", "refused", "beyond", "raised", "warned", "open")
ALLOWED = KINDS[:5]
LARGEST = 1.001  # bounds, by the record of a step
ELSEWHERE = 0.001  # bounds, in a step that does not have the record

# Each with one order of batches.
RUNS = {"cold": psac.Abadi(bound=0.5), "warm": psac.PSAC()}
CASES: list[Case] = []


class Impossible(Exception):
    """The case cannot be written any more; says why."""


@dataclass(frozen=True)
class Case:
    cause: str
    title: str
    run: Callable[[World], None]
    outlier: float = 1e3
    stops: type[Exception] | None = None  # what the function raises for some records
    beyond: str | None = None  # why psac does not judge it
    warned: bool = False  # what changes outside cannot be judged: it is in the ledger, not refused

    @property
    def id(self) -> str:
        return f"{self.cause}-{self.run.__name__}"


@dataclass
class Outcome:
    kind: str
    ratio: float | None = None  # of the steps that have the record
    elsewhere: float | None = None  # of the steps that do not
    message: str = ""
    ways: list[str] = field(default_factory=list)

    may_be_warned: bool = False

    @property
    def allowed(self) -> bool:
        return self.kind in ALLOWED or (self.kind == "warned" and self.may_be_warned)


def case(
    cause: str, title: str, **settings: Any
) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Puts a function into the table."""

    def put(run: Callable[[World], None]) -> Callable[[World], None]:
        CASES.append(Case(cause, title, run, **settings))
        return run

    return put


def measure(this: Case) -> Outcome:
    """The worst over the rules and the orders of batches."""
    found = [measure_once(this, clipping, order) for order, clipping in RUNS.items()]
    worst = max(found, key=lambda o: (KINDS.index(o.kind), max(o.ratio or 0, o.elsewhere or 0)))
    worst.ways = sorted({way for outcome in found for way in outcome.ways})
    worst.may_be_warned = this.warned
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
            expected = this.stops is not None and isinstance(error, this.stops)
            text = f"{type(error).__name__}: {plain(error)}"
            return Outcome("stopped" if expected else "raised", message=text)
    own, elsewhere = difference(*worlds)
    if worlds[0].replaced:
        own /= 2  # one record goes and another comes
    ways = sorted({way for world in worlds for way in world.ways})
    told = [plain(w.message) for w in raised if issubclass(w.category, psac.PrivacyWarning)]
    if own <= LARGEST and elsewhere <= ELSEWHERE:
        kind = "isolated"
    elif this.beyond:
        kind, told = "beyond", [this.beyond]
    else:
        kind = "warned" if told and any(world.noted() for world in worlds) else "open"
    return Outcome(kind, own, elsewhere, told[0] if told else "", ways)


def plain(error: object) -> str:
    """On one line, and the same each time: without addresses and what was drawn for a test."""
    text = re.sub(r"0x[0-9a-f]{4,}", "0x...", " ".join(str(error).split()))
    return re.sub(r"record \d+ changes when [^.]*", "a record changes", text)
