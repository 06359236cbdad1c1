"""Releases ranges and categories with noise, and records it in a ledger.

All columns share the budget (epsilon, delta) equally.  They are released by Gaussian queries, which
compose exactly with the steps of training.  The number of records is public.

    range        two quantiles by noisy binary search over a public grid.  Each query counts the
                 values up to x, which one record changes by at most 1.  The range is then widened
                 to hold nearly all values of a normal distribution with these quantiles.
    categories   a histogram of the values that occur, with a threshold; a record changes one count
                 by 1.  A value of a single record is released with probability at most d, where
                 the d of all columns add up to half of delta.  Counts are not released.

With the noise multiplier z for a column, the counts of a histogram have noise of z, and each of the
m queries of a range has noise of sqrt(m) z: together they cost as much as one query with z.
Guarantees: the ledger records a release before its noise is drawn; noise is cryptographic unless
there is a seed, which makes the ledger insecure; all releases together are (epsilon,
delta)-private.

Binary search with noisy counts: Feldman and Steinke 2017 (arXiv:1706.05069) among others; the
threshold: Korolova et al. 2009, "stability-based histograms", here with Gaussian noise.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from scipy import special

from psac import accounting
from psac.accounting import Ledger
from psac.app.data.tables.cells import Cells, quoted
from psac.noise.gaussian import add_noise_
from psac.noise.generators import (
    InsecureNoiseWarning,
    NoiseGenerator,
    SecureGenerator,
    SeededGenerator,
)

PER_OCTAVE = 256
OCTAVES = range(-20, 40)
QUANTILE = 0.01  # share of the records on each side of the range, before it is widened
CLEAR = 3.0  # distance of a quantile from the ends, in standard deviations of a count
REST = 1e-3  # share of a normal distribution on each side of the widened range


def _grid() -> np.ndarray:
    """Public points: 0 and, with both signs, 256 steps in each octave."""
    steps = 1 + np.arange(PER_OCTAVE) / PER_OCTAVE
    above = np.concatenate([2.0**octave * steps for octave in OCTAVES])
    return np.concatenate([-above[::-1], [0.0], above])


GRID = _grid()
DEPTH = math.ceil(math.log2(len(GRID)))
QUERIES = 1 + 2 * DEPTH  # the total count and two quantiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """The budget for ranges and categories; with a `seed` the release is NOT private."""

    epsilon: float
    delta: float
    seed: int | None = None

    def generator(self) -> NoiseGenerator:
        if self.seed is None:
            return SecureGenerator()
        with warnings.catch_warnings():  # training on the records warns
            warnings.simplefilter("ignore", InsecureNoiseWarning)
            return SeededGenerator(self.seed).spawn("ranges and categories")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    ranges: Mapping[str, tuple[float, float]]
    categories: Mapping[str, tuple[str, ...]]
    ledger: Ledger


def release_columns(
    numbers: Mapping[str, np.ndarray], words: Mapping[str, Cells], budget: Budget, num_records: int
) -> Release:
    """Ranges of these numbers, where NaN is a missing cell, and categories of these words."""
    noise, unique = noise_of(budget, len(numbers), len(words))
    _refuse_too_few(noise, len(numbers), num_records)
    generator = budget.generator()
    ledger = Ledger(secure=generator.secure)
    mark = generator.spawn("mark").random_bytes(4).hex()  # tells two releases apart
    spent = {"noise_multiplier": noise, "sampling_rate": 1.0, "num_records": num_records}
    if numbers:
        what = f"private ranges of {quoted(numbers)} (release {mark})"
        ledger.record(**spent, steps=len(numbers), what=what)
    if words:
        what = f"private categories of {quoted(words)} (release {mark})"
        ledger.record(**spent, steps=len(words), what=what, delta=unique)
    return Release(
        ranges={name: private_range(values, noise, generator) for name, values in numbers.items()},
        categories={
            name: private_categories(name, cells, noise, unique, generator)
            for name, cells in words.items()
        },
        ledger=ledger,
    )


def noise_of(budget: Budget, ranges: int, categories: int) -> tuple[float, float]:
    """The noise multiplier for each column, and the probability of releasing a unique value."""
    unique = budget.delta / 2 / categories if categories else 0.0
    noise = accounting.calibrate(
        epsilon=budget.epsilon + categories * math.log1p(-unique),
        delta=budget.delta - categories * unique,
        sampling_rate=1.0,
        steps=ranges + categories,
    )
    return noise, unique


def _refuse_too_few(noise: float, ranges: int, num_records: int) -> None:
    """Depends on public numbers only."""
    deviation = noise * math.sqrt(QUERIES)
    if ranges and CLEAR * deviation > num_records / 4:
        raise ValueError(
            f"{num_records:,} records are too few for private ranges of {ranges} columns: counts "
            f"would have noise of {deviation:,.0f} records. State public ranges, or spend a larger "
            "share of the budget."
        )


# ---- Ranges


def counts_below(values: np.ndarray) -> np.ndarray:
    """For each point of the grid, the number of values up to it."""
    present = values[~np.isnan(values)]
    places = np.searchsorted(GRID, np.clip(present, GRID[0], GRID[-1]))
    return np.cumsum(np.bincount(places, minlength=len(GRID)))


def private_range(
    values: np.ndarray, noise: float, generator: NoiseGenerator
) -> tuple[float, float]:
    below, deviation = counts_below(values), noise * math.sqrt(QUERIES)

    def noisy(place: int) -> float:
        return _with_noise(np.array([below[place]], float), deviation, generator)[0]

    count = max(noisy(len(GRID) - 1), 1.0)
    least = min(max(QUANTILE * count, CLEAR * deviation), count / 4)
    places = []
    for rank in (least, count - least):
        low, high = 0, len(GRID) - 1
        for _ in range(DEPTH):
            middle = (low + high) // 2
            low, high = (middle + 1, high) if noisy(middle) < rank else (low, middle)
            low = min(low, high)
        places.append(low)
    return widened(*sorted(places), share=least / count)


def widened(low_place: int, high_place: int, *, share: float) -> tuple[float, float]:
    """The range for two noisy quantiles, which needs no further access to the records."""
    low, high = GRID[max(low_place - 1, 0)], GRID[min(high_place + 1, len(GRID) - 1)]
    middle, half = (low + high) / 2, (high - low) / 2
    wider = half * special.ndtri(1 - REST) / special.ndtri(1 - share)
    bottom, top = middle - max(wider, half), middle + max(wider, half)
    if low >= 0:
        bottom = max(bottom, 0.0)
    step = 10.0 ** (math.floor(math.log10(top - bottom)) - 1)
    return math.floor(bottom / step) * step, math.ceil(top / step) * step


# ---- Categories


def private_categories(
    name: str, cells: Cells, noise: float, unique: float, generator: NoiseGenerator
) -> tuple[str, ...]:
    """The categories whose noisy count is above the threshold."""
    counts: dict[str, int] = {}
    pairs = zip(cells.texts(), cells.missing(), cells.counts(), strict=True)
    for text, missing, count in pairs:
        if not missing:
            counts[text] = counts.get(text, 0) + int(count)
    limit = threshold(noise, unique)
    noisy = _with_noise(np.array(list(counts.values()), float), noise, generator)
    frequent = sorted(text for text, count in zip(counts, noisy, strict=True) if count > limit)
    if not frequent:
        raise ValueError(
            f"no category of {name!r} is frequent enough to be released, which takes about "
            f"{limit:,.0f} records. State public categories, or ignore the column."
        )
    return tuple(frequent)


def threshold(noise: float, unique: float) -> float:
    """A noisy count of 1 exceeds it with probability `unique` at most."""
    return 1 + noise * -float(special.ndtri(unique * (1 - 1e-6)))


def _with_noise(counts: np.ndarray, deviation: float, generator: NoiseGenerator) -> np.ndarray:
    noisy = torch.from_numpy(counts.astype(np.float64))
    add_noise_([noisy], std=deviation, generator=generator)
    return noisy.numpy()
