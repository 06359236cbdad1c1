"""What a ledger writes down: an entry is one kind of release, and how often it was made.

An entry trusts its fields; `schemes.entry` makes one from what a user gave.  A step of training has
no name; whatever else was released of the records, such as the range of a column, says `what` it
was.
"""

import dataclasses
import math
import numbers
import operator

ADD_OR_REMOVE = "add-or-remove-one"
REPLACE = "replace-one"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """`steps` releases of a sum over a sampled batch, where a record weighs at most a bound C.

    The noise has the standard deviation noise_multiplier * C.  `relation` says which data sets are
    neighbours: those that differ by a record that is there or not, or by the content of one.
    `delta` is the chance that one of these releases shows more than its noise allows, as when a
    value that only one record has passes a threshold.
    """

    sampling: str
    relation: str
    noise_multiplier: float
    sampling_rate: float
    num_records: int | None
    steps: int
    what: str = ""
    delta: float = 0.0

    def __str__(self) -> str:
        records = "" if self.num_records is None else f" of {self.num_records} records"
        if self.what:
            delta = f", delta {self.steps * self.delta:.3g}" if self.delta else ""
            return f"{self.what}{records}, noise multiplier {self.noise_multiplier:.6g}{delta}"
        return (
            f"{self.steps} steps, {self.sampling} at rate {self.sampling_rate:.6g}{records}, "
            f"noise multiplier {self.noise_multiplier:.6g}"
        )


def number(name: str, value: object, *, allowed: str, advice: str) -> float:
    """The value as a float, if it is a number within `allowed`, written as an interval."""
    given = f"{name} is {value!r}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{given}: it must be a number in {allowed}. {advice}")
    low, high = (float(end) for end in allowed[1:-1].split(","))
    real = float(value)
    above = real > low or (allowed[0] == "[" and real == low)
    below = real < high or (allowed[-1] == "]" and real == high)
    if not (above and below) or math.isinf(real):
        raise ValueError(f"{given}: allowed is {allowed}. {advice}")
    return real


def whole(name: str, value: object, *, least: int, advice: str) -> int:
    """The value as an int, if it is a whole number of at least `least`."""
    message = f"{name} is {value!r}: it must be a whole number, at least {least}. {advice}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(message)
    if value < least:
        raise ValueError(message)
    return operator.index(value)
