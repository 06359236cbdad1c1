"""Which records enter a step, and how a logical batch becomes physical batches.

A scheme is a description; a `Sampler` draws the record numbers of one step after another.

    Poisson        each record independently with probability q = expected_batch_size / num_records
    FixedSize      exactly expected_batch_size records, without or with replacement
    BallsInBins    each record into exactly one of an epoch's ceil(1 / q) steps

Amplification by sampling holds only if batches are drawn as the accountant assumes.  Guarantees:

- The distribution is exact.  Bits come from `generator` (see `psac.noise.generators`) and are
  compared as integers.  A record's probability is exactly the float `sampling_rate`, so there is
  no rounding error to bound.  Integers have no modulo bias, subsets no ties.
- Steps, epochs and, except for a fixed size, records are independent.  Two secure samplers never
  share draws; workers that train one run draw alike, and each takes its part (psac/distributed).
- Numbers come in ascending order, so the order reveals nothing.
- With a `SeededGenerator`, step t is a function of the seed and t alone; with a `SecureGenerator`
  it is drawn afresh, and nothing that could repeat it is saved.

The sizes are public: neighbouring data sets are sampled at the same q.  A record is a number: a
person with two records is protected for one.  Left to others: the accounting, reading the records
(`psac.loading.dataset`), and keeping the draws secret, on which amplification depends.

>>> from psac.noise.generators import SecureGenerator
>>> sampler = Sampler(Poisson(), 5, expected_batch_size=5, generator=SecureGenerator())
>>> sampler.draw()
tensor([0, 1, 2, 3, 4])
>>> steps_in(40, num_records=60_000, expected_batch_size=512)
4687
"""

import abc
import base64
import dataclasses
import math
import numbers
import zlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psac.checks import number, positive, unknown
from psac.noise.generators import NoiseGenerator, refuse_other_generators

ADD_OR_REMOVE = "add-or-remove-one"
REPLACE = "replace-one"


class Sampling(abc.ABC):
    """A scheme: its name, the neighbouring relation it is accounted under, and how it draws."""

    name: str
    relation: str

    @abc.abstractmethod
    def allot(
        self, num_records: int, expected_batch_size: int, generator: NoiseGenerator
    ) -> list[np.ndarray]:
        """The batches of the next `bins` steps, each in ascending order, from fresh bits."""

    def bins(self, num_records: int, expected_batch_size: int) -> int:
        """How many steps are drawn together."""
        return 1

    def sampling_rate(self, num_records: int, expected_batch_size: int) -> float:
        """How often a record is in a step, on average."""
        return expected_batch_size / num_records


@dataclasses.dataclass(frozen=True)
class Poisson(Sampling):
    """Each record enters each step independently, with probability `sampling_rate`: the default.

    Guarantees: inclusions are independent across records and steps, with probability exactly
    `sampling_rate`; the size of a batch is binomial, and may be 0.  Relation: add or remove
    one record.  Accounted by the privacy loss distribution of the Poisson-subsampled Gaussian.
    """

    name = "poisson"
    relation = ADD_OR_REMOVE

    def allot(
        self, num_records: int, expected_batch_size: int, generator: NoiseGenerator
    ) -> list[np.ndarray]:
        chance = self.sampling_rate(num_records, expected_batch_size)
        return [_heads(num_records, chance, generator)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSize(Sampling):
    """Exactly expected_batch_size records in each step, whatever the step before drew.

    Without replacement: guarantees a uniform subset.  Relation: add or remove one record.  A
    record that enters pushes another one out, so the accounting is that of Poisson with half the
    noise (Zhu et al. 2022, arXiv:2106.08567, theorem 11).

    With replacement: the literal algorithm of the DP-PSAC paper.  Guarantees independent uniform
    draws, where a record may come twice, and then counts twice.  Relation: replace one record.
    Accounted by Balle et al. 2018, arXiv:1807.01647, theorem 10.  It needs more noise than Poisson.
    """

    replacement: bool = False

    def __post_init__(self) -> None:
        if type(self.replacement) is not bool:
            raise TypeError(f"replacement is {self.replacement!r}: pass True or False.")

    @property
    def name(self) -> str:
        return f"fixed-size-{'with' if self.replacement else 'without'}-replacement"

    @property
    def relation(self) -> str:
        return REPLACE if self.replacement else ADD_OR_REMOVE

    def allot(
        self, num_records: int, expected_batch_size: int, generator: NoiseGenerator
    ) -> list[np.ndarray]:
        draw = _uniform if self.replacement else _subset
        return [np.sort(draw(expected_batch_size, num_records, generator))]


@dataclasses.dataclass(frozen=True)
class BallsInBins(Sampling):
    """Each record falls into one of the epoch's bins; each step takes the next bin.

    Guarantees: in every epoch each record enters exactly one step, uniform and independent of other
    records and epochs; a bin may be empty.  For N records and expected batch size B there are
    ceil(N / B) bins.  So the expected size of a bin, N / bins, is B where B divides N and else lies
    below it, by less than B / bins; and floor(k N / B) steps meet no record more than k times.
    Relation: add or remove one record.  It has an accounting of its own, close to that of Poisson
    (Chua et al. 2024, arXiv:2412.16802; Feldman and Shenfeld 2025, arXiv:2502.08202): per epoch,
    from the number of bins, where an epoch counts as a whole one as soon as it has begun.
    """

    name = "balls-in-bins"
    relation = ADD_OR_REMOVE

    def bins(self, num_records: int, expected_batch_size: int) -> int:
        return -(-num_records // expected_batch_size)

    def sampling_rate(self, num_records: int, expected_batch_size: int) -> float:
        return 1 / self.bins(num_records, expected_batch_size)

    def allot(
        self, num_records: int, expected_batch_size: int, generator: NoiseGenerator
    ) -> list[np.ndarray]:
        bins = self.bins(num_records, expected_batch_size)
        return _grouped(_uniform(num_records, bins, generator), bins)


SCHEMES: dict[str, Sampling] = {
    scheme.name: scheme
    for scheme in (Poisson(), FixedSize(), FixedSize(replacement=True), BallsInBins())
}
REFUSED = {
    "shuffle": "the order of a shuffled epoch is not known to amplify privacy as Poisson does, so "
    "no useful epsilon could be stated. Balls-in-bins also visits each record once an epoch",
    "weighted": "a record that is drawn more often is protected less, and the accounting has one "
    "rate for all. Weigh the loss of a sample instead, within the clipping bound",
}


def get(name: str) -> Sampling:
    """The scheme called `name` in `SCHEMES`: `get("poisson")`."""
    if name not in SCHEMES:
        raise ValueError(refusal(name))
    return SCHEMES[name]


def refusal(name: object) -> str:
    """The message for a name that no scheme has."""
    for refused, reason in REFUSED.items():
        if refused in str(name).lower():
            known = ", ".join(sorted(SCHEMES))
            return f"sampling {name!r} is refused: {reason}. Known: {known}."
    return unknown("sampling", name, SCHEMES)


class Sampler:
    """Draws the steps of one run: `draw` gives the record numbers of the next one.

    `sampling_rate` is how often a record is in a step on average; `bins` is how many steps are
    drawn together, which is 1 for all schemes but `BallsInBins`, whose epoch it is.  `copy.copy` of
    a sampler stays as it is while the sampler draws ahead of training.
    """

    def __init__(
        self,
        scheme: Sampling,
        num_records: int,
        expected_batch_size: int,
        generator: NoiseGenerator,
    ) -> None:
        sizes = _checked_sizes(num_records, expected_batch_size)
        refuse_other_generators(generator)
        self.scheme, self.generator = scheme, generator
        self.num_records, self.expected_batch_size = sizes
        self.sampling_rate, self.bins = scheme.sampling_rate(*sizes), scheme.bins(*sizes)
        self._resume_at(0, [])

    def _resume_at(self, step: int, rest: list[np.ndarray]) -> None:
        """Continue at this step, with the batches that are already drawn for the next steps."""
        self.steps_drawn = step
        self._block = step // self.bins if rest else None
        self._batches = [np.empty(0, np.int64)] * (self.bins - len(rest)) + rest

    def draw(self) -> Tensor:
        """The record numbers of the next step, int64, ascending; there may be none."""
        block, position = divmod(self.steps_drawn, self.bins)
        if self._block != block:
            stream = self.generator.spawn(f"step {block * self.bins}")
            self._batches = self.scheme.allot(self.num_records, self.expected_batch_size, stream)
            self._block = block
        self.steps_drawn += 1
        return torch.from_numpy(self._batches[position].copy())

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, for JSON.

        In the middle of an epoch of `BallsInBins`, the state of a secure sampler says which records
        the next steps take: keep it as secret as the data.
        """
        position = self.steps_drawn % self.bins
        is_drawn = position > 0 and self.generator.secure
        rest = _packed(self._batches[position:], self.num_records) if is_drawn else None
        return {**self._identity(), "steps_drawn": self.steps_drawn, "rest": rest}

    def _identity(self) -> dict[str, Any]:
        return {
            "sampling": self.scheme.name,
            "num_records": self.num_records,
            "expected_batch_size": self.expected_batch_size,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.  A seeded sampler needs the same seed."""
        saved = {name: state.get(name) for name in self._identity()}
        if saved != self._identity():
            raise ValueError(
                f"this state belongs to {saved}, not to {self._identity()}. Load it into a "
                "sampler of the same scheme and sizes, or start a new run with its own budget."
            )
        step, rest = state["steps_drawn"], state["rest"]
        left = -step % self.bins
        if left and rest is None and self.generator.secure:
            raise ValueError(
                f"this state ends {left} steps before the end of an epoch, without their batches: "
                "a seeded run saved it. Give the sampler that SeededGenerator."
            )
        self._resume_at(step, [] if rest is None else _unpacked(rest, left, self.num_records))


# ---- Counting steps


def steps_in(epochs: float | Fraction, num_records: int, expected_batch_size: int) -> int:
    """floor(epochs * num_records / expected_batch_size) in exact arithmetic, and at least 1.

    A float means the nearest fraction with a denominator up to a million: 0.3 is 3/10.  An epoch of
    `BallsInBins` has `bins` steps, here and below: pass num_records=bins, expected_batch_size=1.
    """
    records, batch = _checked_sizes(num_records, expected_batch_size)
    number("epochs", epochs, advice="Usual are 10 to 100; 0.5 is half a pass over the data.")
    if isinstance(epochs, numbers.Rational):  # pyright: ignore[reportUnnecessaryIsInstance]
        exact = Fraction(int(epochs.numerator), int(epochs.denominator))
    else:
        exact = Fraction(float(epochs)).limit_denominator(10**6)
    return max(1, math.floor(exact * records / batch))


def steps_of_epoch(epoch: int, num_records: int, expected_batch_size: int) -> range:
    """The steps of epoch 0, 1, ...: from floor(epoch N / B) to below floor((epoch + 1) N / B).

    Lengths differ by at most one, and k epochs have `steps_in(k, ...)` steps together.
    """
    records, batch = _checked_sizes(num_records, expected_batch_size)
    return range(epoch * records // batch, (epoch + 1) * records // batch)


def epoch_of(step: int, num_records: int, expected_batch_size: int) -> int:
    """The epoch whose `steps_of_epoch` hold this step."""
    records, batch = _checked_sizes(num_records, expected_batch_size)
    return -(-(step + 1) * batch // records) - 1


# ---- Physical batches


def physical_batches(
    indices: Tensor | Sequence[int], largest: int | None, worker: int = 0, workers: int = 1
) -> list[list[int]]:
    """The indices in order, cut into the fewest lists of at most `largest`, as even as possible.

    None means no limit.  No indices give no batch: the caller takes a noise-only step.  Each of
    several workers has a part of them, in equally many lists, of which some may be empty.
    """
    most = -(-len(indices) // workers)
    count = 1 if largest is None else -(-most // positive("largest", largest))
    if len(indices) == 0:
        return []
    part = torch.as_tensor(indices).tensor_split(workers)[worker]
    return [batch.tolist() for batch in part.tensor_split(count)]


# ---- Exact draws


def _heads(count: int, chance: float, generator: NoiseGenerator) -> np.ndarray:
    """Which of `count` coins fall heads, each with exactly this probability.

    Digits of a uniform number, in base 2^16, are compared with those of the probability until they
    differ.  Nearly all coins are decided by the first digit; one in 2^16 draws the next.
    """
    numerator, denominator = chance.as_integer_ratio()
    heads, undecided = [], np.arange(count)
    while numerator and len(undecided):
        digit, numerator = divmod(numerator << 16, denominator)
        drawn = _words(len(undecided), "<u2", generator)
        heads.append(undecided[drawn < digit])
        undecided = undecided[drawn == digit]
    return np.sort(np.concatenate(heads))


def _uniform(count: int, limit: int, generator: NoiseGenerator) -> np.ndarray:
    """Independent uniform integers below `limit`."""
    last = 2**64 - 2**64 % limit - 1  # Words above it would favour small remainders.
    fair = np.empty(0, np.uint64)
    while len(fair) < count:
        words = _words(count - len(fair), "<u8", generator)
        fair = np.concatenate([fair, words[words <= last]])
    return (fair % limit).astype(np.int64)


def _subset(count: int, limit: int, generator: NoiseGenerator) -> np.ndarray:
    """A uniform subset of the integers below `limit`: those with the smallest random keys."""
    if count == limit:
        return np.arange(limit)
    while True:
        keys = _words(limit, "<u8", generator)
        order = np.argpartition(keys, (count - 1, count))
        if keys[order[count - 1]] < keys[order[count]]:  # A tie: draw new keys.
            return order[:count]


def _words(count: int, dtype: str, generator: NoiseGenerator) -> np.ndarray:
    return np.frombuffer(generator.random_bytes(count * np.dtype(dtype).itemsize), dtype)


def _grouped(bin_of_record: np.ndarray, bins: int) -> list[np.ndarray]:
    """The records of each bin."""
    # Sorting short integers is several times faster.
    order = np.argsort(bin_of_record.astype(_short(bins)), kind="stable")
    return np.split(order, np.cumsum(np.bincount(bin_of_record, minlength=bins))[:-1])


def _short(largest: int) -> np.dtype:
    return np.min_scalar_type(largest).newbyteorder("<")


def _packed(batches: list[np.ndarray], num_records: int) -> str:
    """Disjoint batches as text: for each record its batch, or one past the last for none."""
    numbers = np.full(num_records, len(batches), _short(len(batches)))
    for k, batch in enumerate(batches):
        numbers[batch] = k
    return base64.b64encode(zlib.compress(numbers.tobytes(), 1)).decode("ascii")


def _unpacked(text: str, num_batches: int, num_records: int) -> list[np.ndarray]:
    numbers = np.frombuffer(zlib.decompress(base64.b64decode(text)), _short(num_batches))
    if len(numbers) != num_records or numbers.max() > num_batches:
        raise ValueError("the saved rest of the epoch does not fit this sampler: it is damaged.")
    return _grouped(numbers, num_batches + 1)[:-1]


# ---- Checks


def _checked_sizes(num_records: int, expected_batch_size: int) -> tuple[int, int]:
    records = positive("num_records", num_records)
    batch = positive("expected_batch_size", expected_batch_size)
    if batch > records:
        raise ValueError(
            f"expected_batch_size is {batch}, but there are only {records} records: choose a "
            "smaller one."
        )
    return records, batch
