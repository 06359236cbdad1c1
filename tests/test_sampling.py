"""Draws have the law that the accountant is told, fakes are seen through, and resuming is exact."""

import base64
import collections
import copy
import dataclasses
import itertools
import json
import math
import warnings
import zlib
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from psac.noise.generators import (
    InsecureNoiseWarning,
    NoiseGenerator,
    SecureGenerator,
    SeededGenerator,
)
from psac.sampling import (
    REFUSED,
    SCHEMES,
    BallsInBins,
    FixedSize,
    Poisson,
    Sampler,
    Sampling,
    epoch_of,
    get,
    physical_batches,
    steps_in,
    steps_of_epoch,
)

each_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)


def seeded(seed: int = 0) -> SeededGenerator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)
        return SeededGenerator(seed)


def sampler_of(
    scheme: Sampling, num_records: int, batch: int, generator: NoiseGenerator | int = 0
) -> Sampler:
    generator = seeded(generator) if isinstance(generator, int) else generator
    return Sampler(scheme, num_records, batch, generator)


def drawn(sampler: Sampler, steps: int) -> list[list[int]]:
    return [sampler.draw().tolist() for _ in range(steps)]


class Scripted(NoiseGenerator):
    """Hands out the given integers, as words of however many bytes are asked for."""

    secure = False

    def __init__(self, words: Iterable[int], width: int) -> None:
        self.words, self.width = list(words), width

    def reserve(self, num_streams: int) -> tuple[bytes, int]:
        raise AssertionError("a sampler takes its bits from random_bytes")

    def spawn(self, name: str) -> "Scripted":
        return self

    def random_bytes(self, count: int) -> bytes:
        taken = [self.words.pop(0) for _ in range(count // self.width)]
        return b"".join(word.to_bytes(self.width, "little") for word in taken)


# ---- Poisson: the law

RECORDS, BATCH, STEPS = 240, 12, 6_000
RATE = BATCH / RECORDS
EPOCH = RECORDS // BATCH


def inclusions(sampler: Sampler, steps: int = STEPS) -> np.ndarray:
    """Row t, column i: whether step t has record i."""
    found = np.zeros((steps, sampler.num_records), dtype=bool)
    for row in found:
        row[sampler.draw().numpy()] = True
    return found


def scores(table: np.ndarray, rate: float) -> dict[str, float]:
    """How many standard errors a table of inclusions is away from coins of this rate."""
    steps, records = table.shape
    x = (table - rate) / math.sqrt(rate * (1 - rate))
    kurtosis = (1 - 3 * rate * (1 - rate)) / (rate * (1 - rate))  # Of one standardised coin.

    def excess(sums: np.ndarray, terms: int) -> float:
        """Of the variance of standardised sums over the 1 that it should be."""
        spread = math.sqrt((2 + (kurtosis - 3) / terms) / sums.size)
        return float(np.mean(sums**2) - 1) / spread

    pairs = (x.T @ x / math.sqrt(steps))[np.triu_indices(records, 1)]
    found = {
        "rate": float(x.sum()) / math.sqrt(x.size),
        "records": excess(x.sum(0) / math.sqrt(steps), steps),
        "batch sizes": excess(x.sum(1) / math.sqrt(records), records),
        "pairs": excess(pairs, steps),
        "nearest": float((x[:, 1:] * x[:, :-1]).mean()) * math.sqrt(x[:, 1:].size),
    }
    for lag in (1, 2, EPOCH - 1, EPOCH):
        found[f"lag {lag}"] = float((x[lag:] * x[:-lag]).mean()) * math.sqrt(x[lag:].size)
    return found


def suspicions(table: np.ndarray, rate: float = RATE) -> set[str]:
    return {name for name, score in scores(table, rate).items() if abs(score) > 4.5}


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    return inclusions(sampler_of(Poisson(), RECORDS, BATCH))


def test_poisson_draws_are_independent_coins_of_the_stated_rate(table):
    assert suspicions(table) == set()


def test_secure_poisson_draws_are_independent_coins_too():
    # Not repeatable, hence wider: each score passes 6.5 once in 10^10 runs.
    sampler = sampler_of(Poisson(), RECORDS, BATCH, SecureGenerator())
    found = scores(inclusions(sampler), RATE)
    assert max(abs(score) for score in found.values()) < 6.5, found


def shuffled_epochs() -> np.ndarray:
    random = np.random.default_rng(0)
    rows = []
    for _ in range(STEPS // EPOCH):
        step_of_record = random.permutation(RECORDS) // BATCH
        rows.append(step_of_record == np.arange(EPOCH)[:, None])
    return np.concatenate(rows)


def scaled_rate(tenths: int) -> np.ndarray:
    return inclusions(sampler_of(Poisson(), 10 * RECORDS, tenths * BATCH))[:, :RECORDS]


def unequal_rates() -> np.ndarray:
    rates = RATE * np.where(np.arange(RECORDS) % 2, 0.9, 1.1)
    return np.random.default_rng(0).random((STEPS, RECORDS)) < rates


def drawn_by(scheme: Sampling, steps: int = STEPS, share: int = 1) -> np.ndarray:
    return inclusions(sampler_of(scheme, RECORDS // share, BATCH // share), steps)


# What is drawn, and the score that must give it away.
FAKES: dict[str, tuple[Callable[[], np.ndarray], str]] = {
    "nine tenths of the rate": (lambda: scaled_rate(9), "rate"),
    "eleven tenths of the rate": (lambda: scaled_rate(11), "rate"),
    "unequal rates": (unequal_rates, "records"),
    "a fixed size": (lambda: drawn_by(FixedSize()), "batch sizes"),
    "shuffled epochs": (shuffled_epochs, "batch sizes"),
    "balls in bins": (lambda: drawn_by(BallsInBins()), "records"),
    "one coin for two": (lambda: np.repeat(drawn_by(Poisson(), share=2), 2, axis=1), "pairs"),
    "each mask twice": (lambda: np.repeat(drawn_by(Poisson(), STEPS // 2), 2, axis=0), "lag 1"),
    "all epochs alike": (
        lambda: np.tile(drawn_by(Poisson(), EPOCH), (STEPS // EPOCH, 1)),
        f"lag {EPOCH}",
    ),
}


@pytest.mark.parametrize("fake, fault", FAKES.values(), ids=FAKES)
def test_what_only_looks_like_poisson_is_rejected(fake, fault):
    assert fault in suspicions(fake())


def test_the_size_of_a_poisson_batch_is_binomial(table):
    sizes = np.bincount(table.sum(1), minlength=RECORDS + 1)
    expected = STEPS * stats.binom.pmf(np.arange(RECORDS + 1), RECORDS, RATE)
    often = expected > 5
    assert (
        stats.chisquare(
            np.append(sizes[often], sizes[~often].sum()),
            np.append(expected[often], expected[~often].sum()),
        ).pvalue
        > 1e-3
    )


DIGITS = st.lists(st.sampled_from([0, 1, 32767, 32768, 65534, 65535]), min_size=8, max_size=8)


@given(batch=st.integers(1, 999), digits=DIGITS, alike=st.integers(0, 8))
@example(batch=500, digits=[32768] + [0] * 7, alike=0)  # One half, exactly: not below it.
@example(batch=500, digits=[32767] + [65535] * 7, alike=0)
def test_a_coin_compares_a_uniform_number_with_the_stated_rate_exactly(batch, digits, alike):
    rate = Fraction(batch / 1000)
    places = [2 ** (16 * (place + 1)) for place in range(8)]
    digits = [math.floor(rate * p) % 2**16 for p in places[:alike]] + digits[alike:]
    uniform = sum(Fraction(digit, p) for digit, p in zip(digits, places, strict=True))
    others = [65535] * 999  # Their first digits: above that of any rate here.
    script = Scripted([digits[0], *others, *digits[1:]], width=2)
    expected = [0] if uniform < rate else []
    assert drawn(sampler_of(Poisson(), 1000, batch, script), 1) == [expected]


def test_coins_that_are_decided_late_do_not_change_the_order():
    digit = math.floor(2**16 / 3)
    script = Scripted([digit, 0, 65535, 0], width=2)  # The first coin ties, then falls heads.
    assert drawn(sampler_of(Poisson(), 3, 1, script), 1) == [[0, 1]]


def test_the_rate_that_is_accounted_is_the_float_nearest_to_the_quotient():
    assert sampler_of(Poisson(), 60_000, 512).sampling_rate == 512 / 60_000


@pytest.mark.parametrize("generator", [SecureGenerator(), 0], ids=["secure", "seeded"])
def test_a_rate_of_one_takes_every_record(generator):
    assert drawn(sampler_of(Poisson(), 50, 50, generator), 3) == [list(range(50))] * 3


def test_a_poisson_batch_may_be_empty_and_still_has_the_right_type():
    sampler = sampler_of(Poisson(), 10, 1)
    batches = [sampler.draw() for _ in range(50)]
    empty = [batch for batch in batches if not len(batch)]
    assert empty
    assert empty[0].dtype == torch.int64
    assert empty[0].shape == (0,)


# ---- Fixed size


def fits(counts: dict[tuple[int, ...], int], chances: dict[tuple[int, ...], float]) -> bool:
    """Whether outcomes occur as often as they should, by chi-square at one in a thousand."""
    if not counts.keys() <= chances.keys():
        return False
    total = sum(counts.values())
    observed = [counts.get(outcome, 0) for outcome in chances]
    expected = [total * chance for chance in chances.values()]
    return bool(stats.chisquare(observed, expected).pvalue > 1e-3)


SUBSETS = dict.fromkeys(itertools.combinations(range(6), 3), 1 / 20)
MULTISETS: dict[tuple[int, ...], float] = collections.Counter()
for outcome in itertools.product(range(4), repeat=3):
    MULTISETS[tuple(sorted(outcome))] += 1 / 64


def outcomes(scheme: Sampling, num_records: int, batch: int) -> dict[tuple[int, ...], int]:
    return collections.Counter(map(tuple, drawn(sampler_of(scheme, num_records, batch), 8000)))


def test_without_replacement_every_subset_is_equally_likely():
    assert fits(outcomes(FixedSize(), 6, 3), SUBSETS)


def test_with_replacement_every_draw_is_uniform_and_independent():
    assert fits(outcomes(FixedSize(replacement=True), 4, 3), MULTISETS)


def test_the_test_of_subsets_rejects_uneven_ones():
    counts = outcomes(FixedSize(), 6, 3)
    counts[0, 1, 2] += counts.pop((3, 4, 5)) // 2
    assert not fits(counts, SUBSETS)
    assert not fits(outcomes(FixedSize(replacement=True), 6, 3), SUBSETS)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 99, 100])
def test_the_fixed_size_is_exact(replacement, batch):
    batches = drawn(sampler_of(FixedSize(replacement=replacement), 100, batch), 20)
    assert {len(numbers) for numbers in batches} == {batch}
    assert {number for numbers in batches for number in numbers} <= set(range(100))
    if not replacement:
        assert {len(set(numbers)) for numbers in batches} == {batch}


def test_words_that_would_make_remainders_uneven_are_drawn_again():
    # 2^64 is 1 above a multiple of 3: the word 2^64 - 1 would favour the remainder 0.
    script = Scripted([2**64 - 1, 2**64 - 2, 2], width=8)
    sampler = sampler_of(FixedSize(replacement=True), 3, 2, script)
    assert drawn(sampler, 1) == [[2, 2]]
    assert script.words == []


def test_keys_that_tie_at_the_edge_of_a_subset_are_drawn_again():
    script = Scripted([5, 9, 5, 9, 8, 1, 7, 3], width=8)
    assert drawn(sampler_of(FixedSize(), 4, 1, script), 1) == [[1]]
    tie_inside = Scripted([5, 5, 9, 9], width=8)
    assert drawn(sampler_of(FixedSize(), 4, 2, tie_inside), 1) == [[0, 1]]


# ---- Balls in bins


@pytest.mark.parametrize("generator", [SecureGenerator(), 0], ids=["secure", "seeded"])
@pytest.mark.parametrize("num_records, batch", [(100, 10), (103, 10), (7, 7), (7, 4), (300, 1)])
def test_balls_in_bins_meets_each_record_exactly_once_an_epoch(num_records, batch, generator):
    sampler = sampler_of(BallsInBins(), num_records, batch, generator)
    for _ in range(3):
        epoch = drawn(sampler, sampler.bins)
        assert sorted(itertools.chain(*epoch)) == list(range(num_records))


@pytest.mark.parametrize(
    "num_records, batch, bins", [(100, 10, 10), (101, 10, 11), (60_000, 512, 118), (9, 9, 1)]
)
def test_there_are_enough_bins_that_none_is_expected_to_hold_more_than_a_batch(
    num_records, batch, bins
):
    sampler = sampler_of(BallsInBins(), num_records, batch)
    assert sampler.bins == bins
    assert sampler.sampling_rate == 1 / bins <= batch / num_records
    assert batch - batch / bins < num_records / bins <= batch


def bins_of_records(epochs: int = 400, num_records: int = 200) -> np.ndarray:
    """Row e, column i: the place within epoch e where record i was drawn, of five."""
    sampler = sampler_of(BallsInBins(), num_records, num_records // 5)
    found = np.full((epochs, num_records), -1)
    for row, place in itertools.product(found, range(5)):
        row[sampler.draw().numpy()] = place
    return found


def pairs_fit(first: np.ndarray, second: np.ndarray) -> bool:
    counts = collections.Counter(zip(first.ravel().tolist(), second.ravel().tolist(), strict=True))
    return fits(counts, dict.fromkeys(itertools.product(range(5), repeat=2), 1 / 25))


def test_bins_are_uniform_and_independent_across_records_and_epochs():
    bins = bins_of_records()
    assert pairs_fit(bins[::2], bins[1::2])  # An epoch and the next.
    assert pairs_fit(bins[:, ::2], bins[:, 1::2])  # A record and its neighbour.
    assert not pairs_fit(bins, bins)
    assert not pairs_fit(bins[::2], bins[1::2] % 4)


def test_the_sizes_of_bins_vary_as_those_of_independent_throws():
    bins = bins_of_records()
    sizes = np.array([np.bincount(row, minlength=5) for row in bins])
    # In each epoch the sum of (size - 40)^2 / 40 is chi-square of 4 degrees of freedom.
    spread = ((sizes - 40) ** 2 / 40).sum(1)
    assert stats.kstest(spread, stats.chi2(4).cdf).pvalue > 1e-3
    assert stats.kstest(0.8 * spread, stats.chi2(4).cdf).pvalue < 1e-3


# ---- All schemes


@each_scheme
def test_numbers_ascend_and_are_int64(scheme):
    sampler = sampler_of(scheme, 500, 40, SecureGenerator())
    for _ in range(30):
        batch = sampler.draw()
        assert batch.dtype == torch.int64
        assert bool((batch[1:] >= batch[:-1]).all())


@each_scheme
def test_the_mean_size_is_the_expected_one(scheme):
    sampler = sampler_of(scheme, 400, 40)
    sizes = [len(sampler.draw()) for _ in range(4000)]
    assert np.mean(sizes) == pytest.approx(400 * sampler.sampling_rate, rel=0.01)
    assert sampler.sampling_rate == 0.1


@each_scheme
def test_secure_samplers_never_draw_alike(scheme):
    shared = SecureGenerator()
    samplers = [sampler_of(scheme, 400, 40, shared), sampler_of(scheme, 400, 40, shared)]
    samplers.append(sampler_of(scheme, 400, 40, SecureGenerator()))
    batches = [tuple(batch) for sampler in samplers for batch in drawn(sampler, 20)]
    assert len(set(batches)) == 60


@each_scheme
def test_seeds_and_spawned_ranks_draw_differently_and_the_same_seed_alike(scheme):
    generators = [seeded(0), seeded(1), seeded(0).spawn("rank 0"), seeded(0).spawn("rank 1")]
    runs = [drawn(sampler_of(scheme, 400, 40, generator), 20) for generator in generators]
    assert len({tuple(batch) for run in runs for batch in run}) == 80
    assert drawn(sampler_of(scheme, 400, 40, seeded(0)), 20) == runs[0]


@each_scheme
def test_a_seeded_step_depends_on_nothing_that_the_generator_did_before(scheme):
    used = seeded(0)
    used.random_bytes(100)
    assert drawn(sampler_of(scheme, 50, 7, used), 9) == drawn(sampler_of(scheme, 50, 7, 0), 9)


def test_changing_what_was_drawn_does_not_change_the_sampler():
    sampler = sampler_of(BallsInBins(), 50, 7, SecureGenerator())
    sampler.draw()
    before = copy.copy(sampler)
    batch = sampler.draw()
    numbers = batch.tolist()
    batch.fill_(49)
    assert drawn(before, 1) == [numbers]


# ---- Save and resume


def resumed(state: dict, sampler: Sampler, generator: NoiseGenerator) -> Sampler:
    """A new sampler that goes on from a state that went through JSON."""
    again = sampler_of(sampler.scheme, sampler.num_records, sampler.expected_batch_size, generator)
    again.load_state_dict(json.loads(json.dumps(state)))
    return again


@each_scheme
@pytest.mark.parametrize("step", range(16))
def test_a_seeded_run_resumed_at_any_step_equals_the_uninterrupted_one(scheme, step):
    whole = drawn(sampler_of(scheme, 40, 7), 16)
    sampler = sampler_of(scheme, 40, 7)
    before = drawn(sampler, step)
    again = resumed(sampler.state_dict(), sampler, seeded(0))
    assert again.steps_drawn == step
    assert before + drawn(again, 16 - step) == whole


@each_scheme
def test_a_copy_stays_where_it_is_while_the_sampler_draws_ahead(scheme):
    sampler = sampler_of(scheme, 40, 7)
    copies, whole = [], []
    for _ in range(16):
        copies.append(copy.copy(sampler))
        whole += drawn(sampler, 1)
    for step, before in enumerate(copies):
        assert before.steps_drawn == step
        assert drawn(resumed(before.state_dict(), sampler, seeded(0)), 1) == whole[step : step + 1]
        assert drawn(before, 16 - step) == whole[step:]


@pytest.mark.parametrize("step", range(13))
def test_a_secure_epoch_of_balls_in_bins_resumed_at_any_step_goes_on_as_it_was(step):
    sampler = sampler_of(BallsInBins(), 40, 7, SecureGenerator())
    before = drawn(sampler, step)
    again = resumed(sampler.state_dict(), sampler, SecureGenerator())
    left = -step % sampler.bins
    rest = drawn(again, left)
    assert rest == drawn(sampler, left)
    epoch = before[step - step % sampler.bins :] + rest
    assert sorted(itertools.chain(*epoch)) == (list(range(40)) if left else [])
    assert sorted(itertools.chain(*drawn(again, again.bins))) == list(range(40))


@pytest.mark.parametrize("step", [1, 300, 571])
def test_a_secure_epoch_resumes_from_a_copy_as_often_as_one_likes(step):
    sampler = sampler_of(BallsInBins(), 4000, 7, SecureGenerator())  # More bins than a byte counts.
    drawn(sampler, step)
    before = copy.copy(sampler)
    rest = drawn(sampler, sampler.bins + 3)[: sampler.bins - step]
    again = resumed(before.state_dict(), sampler, SecureGenerator())
    assert again.state_dict() == before.state_dict()
    assert drawn(again, sampler.bins - step) == rest


def test_a_saved_epoch_does_not_tell_who_was_in_its_past_steps():
    sampler = sampler_of(BallsInBins(), 100, 10, SecureGenerator())
    past = list(itertools.chain(*drawn(sampler, 4)))
    saved = zlib.decompress(base64.b64decode(sampler.state_dict()["rest"]))
    assert {saved[record] for record in past} == {6}
    assert 6 not in {saved[record] for record in set(range(100)) - set(past)}


@pytest.mark.parametrize("scheme", [Poisson(), FixedSize()], ids=["poisson", "fixed size"])
def test_a_secure_state_holds_nothing_that_could_repeat_a_draw(scheme):
    sampler = sampler_of(scheme, 400, 40, SecureGenerator())
    state = sampler.state_dict()
    first = drawn(sampler, 1)
    sizes = {"num_records": 400, "expected_batch_size": 40}
    assert state == {"sampling": scheme.name, **sizes, "steps_drawn": 0, "rest": None}
    assert sampler.state_dict() == {**state, "steps_drawn": 1}
    sampler.load_state_dict(state)
    assert drawn(sampler, 1) != first


def test_the_saved_rest_of_an_epoch_is_compact():
    sampler = sampler_of(BallsInBins(), 60_000, 512, SecureGenerator())
    sampler.draw()
    assert len(json.dumps(sampler.state_dict())) < 90_000


def test_a_state_of_another_scheme_or_size_is_refused():
    state = sampler_of(Poisson(), 50, 7).state_dict()
    others = [(FixedSize(), 50, 7), (Poisson(), 51, 7), (Poisson(), 50, 8)]
    for scheme, num_records, batch in others:
        with pytest.raises(ValueError, match=r"'poisson'.* not to .*same scheme and sizes"):
            sampler_of(scheme, num_records, batch).load_state_dict(state)
    with pytest.raises(ValueError, match="not to"):
        sampler_of(Poisson(), 50, 7).load_state_dict({})


def test_a_secure_sampler_refuses_an_epoch_that_only_the_seed_could_complete():
    sampler = sampler_of(BallsInBins(), 50, 7)
    drawn(sampler, 3)
    with pytest.raises(ValueError, match=r"5 steps before the end .* SeededGenerator"):
        resumed(sampler.state_dict(), sampler, SecureGenerator())


def test_a_damaged_rest_is_refused():
    sampler = sampler_of(BallsInBins(), 50, 7, SecureGenerator())
    sampler.draw()
    state = sampler.state_dict()
    other = sampler_of(BallsInBins(), 49, 7, SecureGenerator())
    other.draw()
    with pytest.raises(ValueError, match="damaged"):
        sampler.load_state_dict({**state, "rest": other.state_dict()["rest"]})


# ---- Counting steps


@pytest.mark.parametrize(
    "epochs, num_records, batch, steps",
    [
        (40, 60_000, 512, 4687),
        (40, 60_000, 2048, 1171),
        (50, 50_000, 1024, 2441),
        (3, 67_349, 1000, 202),
        (1, 10, 10, 1),
        (0.001, 100, 10, 1),  # At least one.
        (0.3, 1000, 100, 3),  # 0.3 * 10 is 3, though the float lies below it.
        (0.7, 1000, 10, 70),
        (1 / 3, 300, 1, 100),
        (4687 * 512 / 60_000, 60_000, 512, 4687),
        (Fraction(1, 3), 300, 1, 100),
        (np.int64(40), 60_000, 512, 4687),
        (np.float32(0.5), 60_000, 512, 58),
        (10**12, 10**12, 1, 10**24),
    ],
)
def test_steps_are_counted_exactly(epochs, num_records, batch, steps):
    found = steps_in(epochs, num_records, batch)
    assert found == steps
    assert type(found) is int


def test_no_step_is_lost_where_the_inverse_of_the_rate_rounds_down():
    assert [n for n in range(1, 110) if int(1 / (1 / n)) != n] == [93, 99, 105]
    for n in range(1, 2000):
        assert steps_in(1, n * 64, 64) == n
        assert len(steps_of_epoch(0, n * 64, 64)) == n


@given(st.integers(1, 50), st.integers(1, 5000), st.integers(1, 5000))
def test_epochs_follow_each_other_without_gap_and_add_up_to_the_total(epochs, one, other):
    batch, num_records = sorted((one, other))
    found = [steps_of_epoch(epoch, num_records, batch) for epoch in range(epochs)]
    assert found[0].start == 0
    assert all(before.stop == after.start for before, after in itertools.pairwise(found))
    assert found[-1].stop == sum(map(len, found)) == steps_in(epochs, num_records, batch)
    lengths = {len(steps) for steps in found}
    assert max(lengths) - min(lengths) <= 1 <= min(lengths)
    for epoch, steps in enumerate(found):
        for step in (steps[0], steps[-1]):
            assert epoch_of(step, num_records, batch) == epoch


def test_an_epoch_of_balls_in_bins_is_counted_by_its_bins():
    bins = sampler_of(BallsInBins(), 60_000, 512).bins
    assert steps_in(40, bins, 1) == 40 * 118
    assert steps_of_epoch(1, bins, 1) == range(118, 236)


# ---- Physical batches


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 70))
def test_physical_batches_are_few_even_and_in_order(indices, largest):
    parts = physical_batches(torch.tensor(indices, dtype=torch.int64), largest)
    assert [number for part in parts for number in part] == indices
    assert len(parts) == math.ceil(len(indices) / largest)
    sizes = {len(part) for part in parts}
    assert not sizes or (max(sizes) <= largest and max(sizes) - min(sizes) <= 1 <= min(sizes))
    assert physical_batches(indices, largest) == parts


def test_without_a_limit_there_is_one_physical_batch():
    assert physical_batches(torch.tensor([3, 1, 2]), None) == [[3, 1, 2]]


@pytest.mark.parametrize("largest", [None, 5])
def test_an_empty_draw_has_no_physical_batch(largest):
    assert physical_batches(torch.tensor([], dtype=torch.int64), largest) == []
    assert physical_batches([], largest) == []


# ---- Descriptions and errors


def test_each_scheme_states_its_name_and_relation():
    assert {name: scheme.relation for name, scheme in SCHEMES.items()} == {
        "poisson": "add-or-remove-one",
        "fixed-size-without-replacement": "add-or-remove-one",
        "fixed-size-with-replacement": "replace-one",
        "balls-in-bins": "add-or-remove-one",
    }
    for name, scheme in SCHEMES.items():
        assert get(name) is scheme
        assert scheme.name == name
        assert "Relation:" in (scheme.__doc__ or "")
        assert "ccount" in (scheme.__doc__ or "")


def test_schemes_are_frozen_and_equal_by_value():
    assert Poisson() == Poisson()
    assert FixedSize() == FixedSize(replacement=False) != FixedSize(replacement=True)
    assert repr(FixedSize(replacement=True)) == "FixedSize(replacement=True)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        FixedSize().replacement = True  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        FixedSize(True)  # type: ignore[misc]
    with pytest.raises(TypeError, match="pass True or False"):
        FixedSize(replacement="yes")  # type: ignore[arg-type]


def test_an_unknown_name_is_answered_with_the_known_ones_and_the_nearest():
    with pytest.raises(ValueError, match=r"'poison' is unknown.*balls-in-bins.*mean 'poisson'"):
        get("poison")


@pytest.mark.parametrize("name, reason", [("shuffle", "Balls-in-bins"), ("weighted", "protected")])
def test_sampling_without_a_guarantee_is_refused_with_the_reason(name, reason):
    assert name in REFUSED
    with pytest.raises(ValueError, match=f"'{name}' is refused: .*{reason}.*Known: .*poisson"):
        get(name)


@each_scheme
@pytest.mark.parametrize(
    "num_records, batch, error, message",
    [
        (10, 11, ValueError, "expected_batch_size is 11, but there are only 10 records"),
        (10, 0, ValueError, "expected_batch_size is 0: it must be a whole number, at least 1"),
        (10, -3, ValueError, "expected_batch_size is -3"),
        (0, 1, ValueError, "num_records is 0"),
        (10, 2.0, TypeError, "expected_batch_size is 2.0: it must be a whole number"),
        (10, True, TypeError, "expected_batch_size is True"),
        (10, None, TypeError, "expected_batch_size is None"),
        (10.0, 2, TypeError, "num_records is 10.0"),
    ],
)
def test_impossible_sizes_are_refused(scheme, num_records, batch, error, message):
    with pytest.raises(error, match=message):
        sampler_of(scheme, num_records, batch)
    with pytest.raises(error, match=message):
        steps_in(1, num_records, batch)


@pytest.mark.parametrize("generator", [None, torch.Generator(), 0.5])
def test_bits_are_taken_from_our_generators_only(generator):
    with pytest.raises(TypeError, match=r"generator is .*pass SecureGenerator\(\)"):
        sampler_of(Poisson(), 10, 2, generator)


@pytest.mark.parametrize(
    "epochs, error",
    [
        (0, ValueError),
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (True, TypeError),
        ("3", TypeError),
    ],
)
def test_impossible_epochs_are_refused(epochs, error):
    with pytest.raises(error, match=r"epochs is .*\(0, inf\)"):
        steps_in(epochs, 100, 10)


@pytest.mark.parametrize("largest, error", [(0, ValueError), (2.5, TypeError), (True, TypeError)])
def test_an_impossible_physical_size_is_refused(largest, error):
    with pytest.raises(error, match=r"largest is .*at least 1"):
        physical_batches([1, 2], largest)
