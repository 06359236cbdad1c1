"""Checks of arguments, and the messages for those that are wrong.

A message says what was given, what is allowed and what to do.  The type is wrong: `TypeError`; the
value is: `ValueError`.  Checks run once, where the user calls; inner code trusts.

>>> unknown("clip rule", "psca", ["psac", "abadi"])
"clip rule 'psca' is unknown. Known: abadi, psac. Did you mean 'psac'?"
>>> positive("steps", 100), number("delta", 1e-5, "(0, 1)")
(100, 1e-05)
>>> number("delta", 2, "(0, 1)", advice="Try 1e-5.")
Traceback (most recent call last):
ValueError: delta is 2: allowed is (0, 1). Try 1e-5.
"""

import difflib
import math
import numbers
import operator
from collections.abc import Iterable, Mapping


def suggestion(
    name: object, known: Iterable[str], synonyms: Mapping[str, str] | None = None
) -> str:
    """ " Did you mean 'x'?" for the known name nearest to `name`, whatever its case; else "".

    `synonyms` maps other lower-case words for the same thing to known names.
    """
    spelled, word = {other.lower(): other for other in known}, str(name).lower()
    meant = (synonyms or {}).get(word)
    if meant is None or meant not in spelled.values():
        close = difflib.get_close_matches(word, spelled, n=1)
        meant = spelled[close[0]] if close else None
    return f" Did you mean {meant!r}?" if meant is not None else ""


def unknown(
    what: str, name: object, known: Iterable[str], synonyms: Mapping[str, str] | None = None
) -> str:
    """The message for a name that is not among the known ones."""
    known = sorted(known)
    listed = ", ".join(known) or "none"
    return f"{what} {name!r} is unknown. Known: {listed}.{suggestion(name, known, synonyms)}"


def positive(name: str, value: object, *, least: int = 1, advice: str = "") -> int:
    """The value as an int, if it is a whole number of at least `least`."""
    message = f"{name} is {value!r}: it must be a whole number, at least {least}. {advice}".rstrip()
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(message)
    if value < least:
        raise ValueError(message)
    return operator.index(value)


def number(name: str, value: object, allowed: str = "(0, inf)", *, advice: str = "") -> float:
    """The value as a float, if it is a finite number in `allowed`, written as an interval."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}: it must be a number in {allowed}. {advice}".rstrip())
    low, high = (float(end) for end in allowed[1:-1].split(","))
    real = float(value)
    above = real > low or (allowed[0] == "[" and real == low)
    below = real < high or (allowed[-1] == "]" and real == high)
    if not (above and below) or math.isinf(real):
        raise ValueError(f"{name} is {value!r}: allowed is {allowed}. {advice}".rstrip())
    return real


def exactly_one(**values: object) -> None:
    """Raises unless exactly one of the values is not None."""
    if sum(value is not None for value in values.values()) != 1:
        names, listed = " or ".join(values), ", ".join(f"{k}={v!r}" for k, v in values.items())
        raise ValueError(f"give either {names}: {listed}.")
