"""Epsilon of a ledger without warnings, for pages and lines that state what it means themselves."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from psac.accounting import Entry, Ledger, pricing


def price(ledger: Ledger, delta: float, *, quick: bool = False) -> float:
    """Epsilon at this delta; `quick` is an upper bound that is larger in the fifth digit.

    It uses a coarser lattice and skips the second opinion of dp-accounting.
    """
    return _price(ledger.entries, delta, quick)


@functools.lru_cache(maxsize=256)  # runs that differ in their seed have equal ledgers
def _price(entries: tuple[Entry, ...], delta: float, quick: bool) -> float:
    coarseness = 8.0 if quick else 1.0
    return pricing.price(entries, delta, "pld", coarseness=coarseness, first_look=quick)


def record(ledger: Ledger, entry: Entry) -> None:
    """Adds an entry of one ledger to another."""
    fields: dict[str, Any] = dataclasses.asdict(entry)
    ledger.record(**fields)
