"""Checks that many settings share: names that must be known, and numbers within limits.

>>> unknown("model", "cn", ["mlp", "cnn"])
"model 'cn' is unknown. Known: cnn, mlp. Did you mean 'cnn'?"
>>> suggestion("Smilin", ["Smiling", "Male"]), suggestion("hat", ["Smiling", "Male"])
(" Did you mean 'Smiling'?", '')
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is not known."""
    known = sorted(known)
    listed = ", ".join(known) or "none"
    return f"{what} '{name}' is unknown. Known: {listed}.{suggestion(name, known)}"


def suggestion(name: object, known: Iterable[str]) -> str:
    """The closest known name as a question; empty if none is close."""
    names = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(name).lower(), names, n=1)
    return f" Did you mean '{names[close[0]]}'?" if close else ""


def whole(name: str, value: object, least: int) -> int:
    """The value if it is an integer, `least` or above."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {value!r}: it must be an integer, {least} or above.")
    if value < least:
        raise ValueError(f"{name} is {value}: it must be {least} or above.")
    return int(value)


LIMITS = {
    "above 0": lambda value: value > 0,
    "0 or above": lambda value: value >= 0,
    "above 0 and below 1": lambda value: 0 < value < 1,
    "from 0 to below 1": lambda value: 0 <= value < 1,
}


def number(name: str, value: object, limits: str) -> float:
    """The value if it is a finite number within these limits, one of `LIMITS`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}: it must be a number {limits}.")
    if not LIMITS[limits](float(value)) or math.isinf(float(value)):
        raise ValueError(f"{name} is {value}: it must be finite, {limits}.")
    return float(value)
