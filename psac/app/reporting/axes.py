"""The axis of a plot: its range, its ticks, and the position of a value.

>>> axis = Axis.over([0.812, 0.869], "accuracy")
>>> axis.low, axis.high, [tick.label for tick in axis.ticks]
(0.8, 0.88, ['0.8', '0.82', '0.84', '0.86', '0.88'])
>>> [tick.label for tick in Axis.over([0.02, 30], "norm", log=True).ticks]
['0.01', '0.1', '1', '10', '100']
"""

import dataclasses
import math
from collections.abc import Callable, Iterable

from psac.app.reporting import numerals

STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclasses.dataclass(frozen=True)
class Tick:
    value: float
    label: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    label: str
    low: float
    high: float
    ticks: tuple[Tick, ...]
    log: bool = False

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        label: str,
        *,
        log: bool = False,
        tight: bool = False,
        write: Callable[[float], str] = numerals.rounded,
    ) -> "Axis":
        """An axis for all finite values; a `tight` one ends at the values and not at a tick."""
        finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [0.1, 1.0]
        low, high = min(finite), max(finite)
        if log:
            places = _decades(low, high)
            low, high = (low, high) if tight and high > low else (places[0], places[-1])
        else:
            size = max(abs(low), abs(high))
            if high - low <= max(1e-9 * size, 1e-300):
                room = 0.5 * size if size > 1e-300 else 0.5
                low, high = low - room, high + room
            places = _round_places(low, high)
            if not tight or places[-1] < high + 0.03 * (high - low):  # a tick is near the end
                high = places[-1]
            low = low if tight else places[0]
        slack = 1e-9 * (high - low)
        ticks = [Tick(p, write(p)) for p in places if low - slack <= p <= high + slack]
        return cls(label=label, low=low, high=high, ticks=tuple(ticks), log=log)

    def place(self, value: float) -> float:
        """The position of the value from 0 to 1; values outside are moved to the ends."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.log(max(value, 1e-300))
        else:
            low, high = self.low, self.high
        return min(max((value - low) / (high - low), 0.0), 1.0)


def _round_places(low: float, high: float) -> list[float]:
    """About five round numbers from below `low` to above `high`."""
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * next(s for s in STEPS if s * unit >= 0.75 * raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """At most six powers of ten around the values, or steps of 1, 2, 5 if they span few."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    if last - first <= 1:
        within = [m * 10.0**first for m in (1, 2, 5, 10)]
        below = max((p for p in within if p <= low * (1 + 1e-9)), default=within[0])
        above = min((p for p in within if p >= high * (1 - 1e-9)), default=within[-1])
        ticks = [p for p in within if below <= p <= above]
        return [float(f"{p:.12g}") for p in (ticks if len(ticks) > 1 else within)]
    stride = math.ceil((last - first) / 5)
    last = first + stride * math.ceil((last - first) / stride)
    return [float(f"{10.0**e:.12g}") for e in range(first, last + 1, stride)]
