"""Sums of many independent variables on a lattice, with small errors far out in the tails too.

A variable has masses on the points `first`, `first + 1`, ... times a `step`; the sum has `count`
copies of it.  Its law is a power of a Fourier transform, which in floating point is off by about
1e-16 * count everywhere: more than what is there in the tails.  So the law that is computed is the
tilted one, p(x) exp(t x) / M(t), which has its bulk where the tail of interest is (exponential
tilting); the caller undoes the tilt, and the error shrinks along with the mass.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import fft

ROUNDING = 1e-14  # Error of a probability under the tilted law, per variable; about 3e-16 was seen.


@dataclasses.dataclass(frozen=True, eq=False)
class Variable:
    """Masses (their sum may be below 1) on the points first, first + 1, ..., `count` times."""

    first: int
    masses: np.ndarray
    count: int

    @functools.cached_property
    def log_masses(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(self.masses)

    @functools.cached_property
    def points(self) -> np.ndarray:
        return np.arange(self.first, self.first + len(self.masses), dtype=float)


@dataclasses.dataclass(frozen=True, eq=False)
class Sum:
    """The sum of independent variables on the multiples of `step`."""

    variables: Sequence[Variable]
    step: float

    @property
    def rounding(self) -> float:
        """How far a probability under the tilted law may be off."""
        return ROUNDING * sum(variable.count for variable in self.variables)

    def log_moment(self, tilt: float) -> float:
        """log M(tilt)."""
        return sum(v.count * _log_sum(self._exponents(v, tilt))[1] for v in self.variables)

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """log M(tilt), and mean and variance of the tilted law."""
        total = np.zeros(3)
        for variable in self.variables:
            weights, log_moment = _log_sum(self._exponents(variable, tilt))
            points = variable.points * self.step
            mean = weights @ points
            variance = weights @ (points - mean) ** 2
            total += variable.count * np.array([log_moment, mean, variance])
        return float(total[0]), float(total[1]), float(total[2])

    def span(self, tilt: float, outside: float) -> tuple[int, int]:
        """Points between which the tilted sum lies, but for at most `outside` on each side."""
        log_moment, mean, variance = self.cumulants(tilt)

        def bound(offset: float) -> float:  # Chernoff's, for either sign.
            return (self.log_moment(tilt + offset) - log_moment - math.log(outside)) / offset

        best = math.sqrt(-2 * math.log(outside) / max(variance, self.step**2))  # If it is normal.
        low, high = -_smallest(lambda size: -bound(-size), best), _smallest(bound, best)
        lowest = sum(variable.count * variable.first for variable in self.variables)
        highest = lowest + sum(v.count * (len(v.masses) - 1) for v in self.variables)
        return (
            max(math.floor(min(low, mean) / self.step), lowest),
            min(math.ceil(max(high, mean) / self.step), highest),
        )

    def law(self, tilt: float, low: int, high: int) -> np.ndarray:
        """The tilted probabilities of the points low, ..., high.

        What lies outside is folded into the span, so take one that leaves little outside.
        """
        width = high - low + 1
        longest = max(len(variable.masses) for variable in self.variables)
        size: int = fft.next_fast_len(max(width, longest), real=True)  # type: ignore[assignment]
        spectrum, first = np.ones(size // 2 + 1, complex), 0
        for variable in self.variables:
            weights, _ = _log_sum(self._exponents(variable, tilt))
            spectrum *= np.asarray(fft.rfft(weights, size)) ** variable.count
            first += variable.count * variable.first
        folded = np.asarray(fft.irfft(spectrum, size))
        return np.maximum(np.roll(folded, (first - low) % size)[:width], 0.0)

    def _exponents(self, variable: Variable, tilt: float) -> np.ndarray:
        return variable.log_masses + (tilt * self.step) * variable.points


def _log_sum(exponents: np.ndarray) -> tuple[np.ndarray, float]:
    """exp of them, made to sum to 1, and the logarithm of what the sum was."""
    largest = exponents.max()
    weights = np.exp(exponents - largest)
    total = weights.sum()
    return weights / total, float(largest + math.log(total))


def _smallest(bound: Callable[[float], float], start: float) -> float:
    """The smallest of bound(start), bound(start / 3), ..., which fall and then rise."""
    best, point = bound(start), start / 3
    while (value := bound(point)) < best:
        best, point = value, point / 3
    return best
