"""Lower bounds stay below the truth as often as they say, come near it, and see a broken mechanism.

Mechanisms with a known epsilon stand in for training: Gaussian scores, and randomised response.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from psac.auditing import (
    Bound,
    bounds,
    clopper_pearson_lower_bound,
    epsilon_to_mu,
    gaussian_lower_bound,
    mu_to_epsilon,
    one_run_lower_bound,
)

DELTA = 1e-5
THRESHOLD_BOUNDS = [gaussian_lower_bound, clopper_pearson_lower_bound]

each_threshold_bound = pytest.mark.parametrize("lower_bound", THRESHOLD_BOUNDS)


def gaussian_scores(count: int, mu: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=count), generator.normal(size=count) + mu


def coins(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(count) < 0.5


def randomized_response(members: np.ndarray, epsilon: float, leak: float = 0.0, seed: int = 1):
    """Guesses ±1, (epsilon, leak)-DP: with probability `leak` a guess is the plain truth."""
    generator = np.random.default_rng(seed)
    accuracy = leak + (1 - leak) / (1 + math.exp(-epsilon))
    right = generator.random(len(members)) < accuracy
    return np.where(members == right, 1.0, -1.0)


def all_guesses(scores: np.ndarray) -> list[tuple[int, int]]:
    return [(int((scores > 0).sum()), int((scores <= 0).sum()))]


def share_above(truth: float, draw: Callable[[int], Bound], repeats: int) -> float:
    return float(np.mean([draw(seed).epsilon > truth for seed in range(repeats)]))


class TestProfile:
    @pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.5, 8.0])
    @pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.01])
    def test_it_agrees_with_dp_accounting(self, mu: float, delta: float) -> None:
        from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

        loss = GaussianPrivacyLoss(standard_deviation=1 / mu)
        epsilon = mu_to_epsilon(mu, delta)
        assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-5)
        assert epsilon_to_mu(epsilon, delta) == pytest.approx(mu, rel=1e-6)

    @settings(deadline=None)
    @given(mu=st.floats(1e-3, 40), delta=st.floats(1e-12, 0.5))
    def test_each_conversion_undoes_the_other(self, mu: float, delta: float) -> None:
        epsilon = mu_to_epsilon(mu, delta)
        if epsilon > 1e-6:
            assert epsilon_to_mu(epsilon, delta) == pytest.approx(mu, rel=1e-5)

    def test_it_is_zero_where_delta_alone_explains_the_difference(self) -> None:
        assert mu_to_epsilon(0.0, DELTA) == 0.0
        assert mu_to_epsilon(0.01, 0.1) == 0.0


class TestThresholdBounds:
    @pytest.mark.parametrize("seed", range(5))
    def test_gaussian_bound_is_close_below_the_truth(self, seed: int) -> None:
        truth = mu_to_epsilon(1.0, DELTA)
        bound = gaussian_lower_bound(*gaussian_scores(20_000, 1.0, seed), delta=DELTA)
        assert truth == pytest.approx(4.377, abs=1e-3)
        assert 0.8 * truth <= bound.epsilon <= truth

    @pytest.mark.parametrize("seed", range(5))
    def test_gaussian_bound_sees_half_the_noise(self, seed: int) -> None:
        bound = gaussian_lower_bound(*gaussian_scores(20_000, 2.0, seed), delta=DELTA)
        assert bound.epsilon > 1.8 * mu_to_epsilon(1.0, DELTA)

    @pytest.mark.parametrize("seed", range(5))
    def test_clopper_pearson_bound_is_below_the_truth_and_not_vacuous(self, seed: int) -> None:
        truth = mu_to_epsilon(1.0, DELTA)
        bound = clopper_pearson_lower_bound(*gaussian_scores(20_000, 1.0, seed), delta=DELTA)
        assert 0.4 * truth <= bound.epsilon <= truth

    @pytest.mark.parametrize("seed", range(5))
    def test_clopper_pearson_bound_sees_a_quarter_of_the_noise(self, seed: int) -> None:
        bound = clopper_pearson_lower_bound(*gaussian_scores(20_000, 4.0, seed), delta=DELTA)
        assert bound.epsilon > mu_to_epsilon(1.0, DELTA)

    @each_threshold_bound
    @pytest.mark.parametrize("confidence", [0.5, 0.95])
    @pytest.mark.parametrize("mu", [0.0, 1.0])
    def test_they_exceed_the_truth_no_more_often_than_they_say(
        self, lower_bound: Callable[..., Bound], confidence: float, mu: float
    ) -> None:
        def draw(seed: int) -> Bound:
            scores = gaussian_scores(200, mu, seed)
            return lower_bound(*scores, delta=DELTA, confidence=confidence)

        assert share_above(mu_to_epsilon(mu, DELTA), draw, 300) <= 1 - confidence

    @pytest.mark.parametrize("confidence", [0.5, 0.95])
    def test_clopper_pearson_bound_is_honest_where_it_is_tight(self, confidence: float) -> None:
        """Randomised response is the mechanism on which the bound loses nothing but confidence."""

        def draw(seed: int) -> Bound:
            answers = [
                randomized_response(np.full(300, member), 1.0, seed=2 * seed + member)
                for member in (False, True)
            ]
            return clopper_pearson_lower_bound(*answers, delta=0, confidence=confidence)

        assert share_above(1.0, draw, 300) <= 1 - confidence
        assert share_above(0.5, draw, 300) >= 0.5

    def test_a_threshold_chosen_on_the_scores_it_is_judged_by_would_be_caught(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same check as above fails for a bound that does not pay for its choice."""
        monkeypatch.setattr(bounds, "_split", lambda values: (values, values))
        monkeypatch.setattr(bounds, "CAUTION", 1)

        def draw(seed: int) -> Bound:
            return gaussian_lower_bound(*gaussian_scores(200, 0.0, seed), delta=DELTA)

        assert share_above(0.0, draw, 300) > 0.05

    @each_threshold_bound
    def test_the_order_of_the_scores_has_no_meaning(
        self, lower_bound: Callable[..., Bound]
    ) -> None:
        """With the largest tenth in front, the scores behind would show hardly an error."""
        outs, ins = gaussian_scores(4000, 1.0)
        largest = outs >= np.quantile(outs, 0.9)
        bound = lower_bound(np.concatenate([outs[largest], outs[~largest]]), ins, delta=DELTA)
        assert bound.epsilon <= mu_to_epsilon(1.0, DELTA)

    @each_threshold_bound
    def test_a_chosen_threshold_lies_between_scores_that_are_apart(
        self, lower_bound: Callable[..., Bound]
    ) -> None:
        bound = lower_bound(*gaussian_scores(1000, 50.0), delta=DELTA)
        assert bound.threshold == pytest.approx(25, abs=2)
        assert bound.false_positive_rate == bound.false_negative_rate

    @each_threshold_bound
    def test_a_fixed_threshold_uses_all_scores(self, lower_bound: Callable[..., Bound]) -> None:
        outs, ins = gaussian_scores(1000, 2.0)
        bound = lower_bound(outs, ins, delta=DELTA, threshold=1.0)
        for limit, errors in (
            (bound.false_positive_rate, (outs >= 1.0).sum()),
            (bound.false_negative_rate, (ins < 1.0).sum()),
        ):
            interval = stats.binomtest(int(errors), 1000).proportion_ci(0.95, method="exact")
            assert limit == pytest.approx(interval.high, rel=1e-9)

    def test_the_formulas_are_those_of_the_docstring(self) -> None:
        outs, ins = gaussian_scores(5000, 2.0)
        bound = gaussian_lower_bound(outs, ins, delta=DELTA, threshold=2.0)
        positive, negative = bound.false_positive_rate, bound.false_negative_rate
        assert positive is not None
        assert negative is not None
        assert bound.mu == pytest.approx(stats.norm.ppf(1 - positive) - stats.norm.ppf(negative))
        bound = clopper_pearson_lower_bound(outs, ins, delta=0.01, threshold=2.0)
        assert bound.epsilon == pytest.approx(math.log((1 - 0.01 - negative) / positive))
        mirrored = clopper_pearson_lower_bound(-ins, -outs, delta=0.01, threshold=-2.0)
        assert mirrored.epsilon == pytest.approx(bound.epsilon)

    @each_threshold_bound
    def test_no_test_at_all_gives_zero(self, lower_bound: Callable[..., Bound]) -> None:
        outs, ins = gaussian_scores(1000, 3.0)
        assert lower_bound(np.zeros(100), np.zeros(100), delta=DELTA).epsilon == 0
        assert lower_bound(ins, outs, delta=DELTA).epsilon == 0  # The wrong way round.
        never = lower_bound(outs, ins, delta=DELTA, threshold=math.inf)
        assert (never.epsilon, never.false_negative_rate) == (0, 1)

    @each_threshold_bound
    def test_separate_scores_give_what_the_number_of_runs_allows(
        self, lower_bound: Callable[..., Bound]
    ) -> None:
        epsilons = [
            lower_bound(np.full(count, -math.inf), np.full(count, 1.0), delta=DELTA).epsilon
            for count in (7, 100, 1000, 10_000)
        ]
        assert epsilons[0] > 0
        assert np.all(np.diff(epsilons) > 0.9 * math.log(10))
        assert clopper_pearson_lower_bound(
            [0.0] * 10_000, [1.0] * 10_000, delta=0
        ).epsilon == pytest.approx(math.log(10_000 / 5), abs=0.1)

    @each_threshold_bound
    @settings(max_examples=50, deadline=None)
    @given(seed=st.integers(0, 10**6), count=st.integers(20, 300), mu=st.floats(0, 5))
    def test_a_larger_delta_or_confidence_never_raises_a_bound(
        self, lower_bound: Callable[..., Bound], seed: int, count: int, mu: float
    ) -> None:
        scores = gaussian_scores(count, mu, seed)
        for setting, values in (("delta", (1e-9, 1e-3, 0.2)), ("confidence", (0.5, 0.9, 0.99))):
            arguments = {"delta": DELTA, "threshold": mu / 2}
            found = [lower_bound(*scores, **arguments | {setting: v}).epsilon for v in values]
            assert found == sorted(found, reverse=True)
            assert all(0 <= epsilon < math.inf for epsilon in found)


class TestOneRun:
    @pytest.mark.parametrize(
        "canaries, guessed, correct, delta, published",
        [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
    )
    def test_it_gives_the_numbers_printed_in_the_paper(
        self, canaries: int, guessed: int, correct: int, delta: float, published: float
    ) -> None:
        members = coins(canaries)
        members[:guessed] = np.arange(guessed) < correct
        scores = -np.arange(canaries, dtype=float)
        bound = one_run_lower_bound(scores, members, delta=delta, guesses=[(guessed, 0)])
        assert (bound.correct, bound.guessed, bound.canaries) == (correct, guessed, canaries)
        assert bound.epsilon == pytest.approx(published, abs=1e-3)

    @pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3, 0.05])
    @pytest.mark.parametrize("canaries, guessed", [(12, 12), (60, 40), (300, 7)])
    def test_p_values_agree_with_a_plain_sum(
        self, delta: float, canaries: int, guessed: int
    ) -> None:
        for epsilon in (0.0, 0.5, 3.0):
            accuracy = math.exp(epsilon) / (1 + math.exp(epsilon))
            mass = stats.binom.pmf(np.arange(guessed + 1), guessed, accuracy)
            for correct in range(guessed + 1):
                slopes = [
                    mass[max(0, correct - i) : correct].sum() / i for i in range(1, canaries + 1)
                ]
                expected = mass[correct:].sum() + 2 * canaries * delta * max(slopes)
                found = bounds._p_value(correct, guessed, canaries, epsilon, delta)
                assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)

    @pytest.mark.parametrize("delta", [1e-4, 1e-2, 0.2])
    def test_p_values_cover_a_mechanism_that_spends_its_delta(self, delta: float) -> None:
        for epsilon in (0.0, 1.0, 4.0):
            accuracy = delta + (1 - delta) / (1 + math.exp(-epsilon))
            for correct in range(101):
                exact = stats.binom.sf(correct - 1, 100, accuracy)
                found = bounds._p_value(correct, 100, 100, epsilon, delta)
                assert exact <= found + 1e-12

    @pytest.mark.parametrize("delta", [0.0, 1e-4, 0.02, 0.3])
    def test_rejected_epsilons_have_no_gaps(self, delta: float) -> None:
        """Else the end of the first gap, not the end of the last, would be the bound."""
        for correct in (30, 40, 48, 50):
            p_values = [
                bounds._p_value(correct, 50, 60, epsilon, delta)
                for epsilon in np.linspace(0, 12, 200)
            ]
            for level in (0.01, 0.05, 0.5, 0.9):
                rejected = [value < level for value in p_values]
                assert rejected == sorted(rejected, reverse=True)

    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_close_below_randomised_response(self, epsilon: float, seed: int) -> None:
        members = coins(4000, seed)
        scores = randomized_response(members, epsilon, seed=seed + 100)
        chosen = one_run_lower_bound(scores, members, delta=DELTA, guesses=all_guesses(scores))
        assert 0.75 * epsilon <= chosen.epsilon <= epsilon
        assert 0.6 * epsilon <= one_run_lower_bound(scores, members, delta=DELTA).epsilon <= epsilon

    @pytest.mark.parametrize("confidence", [0.5, 0.95])
    @pytest.mark.parametrize("epsilon, leak", [(0.0, 0.0), (1.0, 0.0), (1.0, 0.01), (3.0, 0.0)])
    def test_it_exceeds_the_truth_no_more_often_than_it_says(
        self, confidence: float, epsilon: float, leak: float
    ) -> None:
        def draw(seed: int) -> Bound:
            members = coins(200, seed)
            scores = randomized_response(members, epsilon, leak, seed=seed + 10_000)
            guesses = None if seed % 2 else all_guesses(scores)
            return one_run_lower_bound(
                scores, members, delta=leak, confidence=confidence, guesses=guesses
            )

        assert share_above(epsilon, draw, 300) <= 1 - confidence

    def test_the_best_of_many_guesses_without_a_price_would_be_caught(self) -> None:
        def best_for_free(seed: int) -> Bound:
            members, scores = coins(2000, seed), np.random.default_rng(seed + 10_000).random(2000)
            return max(
                (
                    one_run_lower_bound(scores, members, delta=0, guesses=[pair])
                    for pair in bounds._pairs(None, 2000, 0.05)
                ),
                key=lambda bound: bound.epsilon,
            )

        def ours(seed: int) -> Bound:
            members, scores = coins(2000, seed), np.random.default_rng(seed + 10_000).random(2000)
            return one_run_lower_bound(scores, members, delta=0)

        assert share_above(0, best_for_free, 200) > 0.05
        assert share_above(0, ours, 200) <= 0.05

    def test_abstaining_helps_where_only_outliers_leak(self) -> None:
        members = coins(5000)
        scores = np.random.default_rng(1).normal(size=5000) + 0.6 * members
        everything = one_run_lower_bound(scores, members, delta=DELTA, guesses=[(2500, 2500)])
        best = one_run_lower_bound(scores, members, delta=DELTA)
        assert best.epsilon > everything.epsilon
        assert best.guessed is not None
        assert best.guessed < 5000

    def test_a_perfect_attack_grows_with_the_logarithm_of_the_canaries(self) -> None:
        epsilons = []
        for count in (100, 1000, 10_000):
            scores = coins(count).astype(float)
            guesses = all_guesses(scores)
            bound = one_run_lower_bound(scores, scores, delta=0, guesses=guesses)
            assert bound.correct == count
            epsilons.append(bound.epsilon)
            # All right with probability 0.05: (1 / (1 + exp(-e)))^m = 0.05.
            assert bound.epsilon == pytest.approx(-math.log(0.05 ** (-1 / count) - 1), rel=1e-6)
        assert np.allclose(np.diff(epsilons), math.log(10), atol=0.05)

    def test_a_larger_delta_never_raises_the_bound(self) -> None:
        members = coins(1000)
        scores = randomized_response(members, 3.0)
        epsilons = [
            one_run_lower_bound(scores, members, delta=delta).epsilon
            for delta in (0.0, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 0.5)
        ]
        assert epsilons == sorted(epsilons, reverse=True)
        assert epsilons[1] == pytest.approx(epsilons[0], abs=0.01)
        assert epsilons[-1] == 0

    def test_equal_scores_do_not_follow_the_order_of_the_canaries(self) -> None:
        members = np.arange(1000) < 500
        assert one_run_lower_bound(np.zeros(1000), members, delta=DELTA).epsilon == 0

    def test_only_the_order_of_the_scores_matters(self) -> None:
        members = coins(500)
        scores = np.random.default_rng(3).normal(size=500) + 2.0 * members
        bound = one_run_lower_bound(scores, members, delta=DELTA)
        shuffled = np.random.default_rng(4).permutation(500)
        assert one_run_lower_bound(np.exp(scores), members, delta=DELTA) == bound
        assert one_run_lower_bound(scores[shuffled], members[shuffled], delta=DELTA) == bound


class TestBoundary:
    def test_lists_arrays_and_tensors_of_any_dtype_are_taken(self) -> None:
        outs, ins = gaussian_scores(1000, 2.0)
        expected = gaussian_lower_bound(outs, ins, delta=DELTA)
        assert gaussian_lower_bound(outs.tolist(), torch.tensor(ins), delta=DELTA) == expected
        low = [torch.tensor(x, dtype=torch.bfloat16, requires_grad=True) for x in (outs, ins)]
        assert gaussian_lower_bound(*low, delta=DELTA).epsilon > 4
        members = torch.tensor(coins(100))
        assert one_run_lower_bound(members.float(), members, delta=DELTA).epsilon > 2

    def test_inputs_are_left_as_they_were(self) -> None:
        outs, ins = gaussian_scores(100, 1.0)
        copies = outs.copy(), ins.copy()
        gaussian_lower_bound(outs, ins, delta=DELTA)
        assert np.array_equal(outs, copies[0])
        assert np.array_equal(ins, copies[1])

    def test_a_bound_reads_as_a_sentence(self) -> None:
        text = str(gaussian_lower_bound([0.0] * 100, [1.0] * 100, delta=DELTA, threshold=0.5))
        assert text.startswith("epsilon >= 21.12 at delta 1e-05, confidence 95% (gaussian: FPR <= ")
        assert text.endswith("mu >= 3.59)")
        members = coins(64)
        text = str(one_run_lower_bound(members, members, delta=0, guesses=[(20, 10)]))
        assert text.endswith("(one_run: 30 of 30 guesses right, 64 canaries)")

    @each_threshold_bound
    @pytest.mark.parametrize(
        "outs, ins, settings, message",
        [
            ([0.0, math.nan] * 50, [1.0] * 100, {}, "scores_out has 50 NaN of 100"),
            ([0.0] * 100, [], {}, "scores_in has shape .0,.: pass one dimension, not empty"),
            ([[0.0]] * 100, [1.0] * 100, {}, "scores_out has shape .100, 1."),
            ([0.0] * 100, [1.0] * 6, {}, "scores_in has 6 scores, too few .* at least 7"),
            ([0.0] * 5, [1.0] * 9, {"threshold": 0.5}, "scores_out has 5 scores.* at least 6"),
            ([0.0] * 100, [1.0] * 100, {"delta": 1.0}, "delta is 1.0: allowed is"),
            ([0.0] * 100, [1.0] * 100, {"delta": -0.1}, "delta is -0.1: allowed is"),
            ([0.0] * 100, [1.0] * 100, {"delta": math.nan}, "delta is nan: allowed is"),
            ([0.0] * 100, [1.0] * 100, {"confidence": 1.0}, "confidence is 1.0: .* Try 0.95"),
            ([0.0] * 100, [1.0] * 100, {"confidence": 0}, "confidence is 0: .* Try 0.95"),
            ([0.0] * 100, [1.0] * 100, {"threshold": math.nan}, "threshold is nan"),
        ],
    )
    def test_threshold_bounds_refuse(
        self, lower_bound: Callable[..., Bound], outs: list, ins: list, settings: dict, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            lower_bound(outs, ins, **{"delta": DELTA} | settings)

    @pytest.mark.parametrize(
        "scores, membership, settings, message",
        [
            ([math.nan] * 64, [0, 1] * 32, {}, "scores has 64 NaN of 64"),
            ([], [], {}, "scores has shape .0,."),
            ([0.5] * 64, [0, 1] * 30, {}, "membership has 60 entries for 64 scores"),
            ([0.5] * 64, [-1, 1] * 32, {}, "membership may hold True and False"),
            ([0.5] * 64, [1] * 64, {}, "64 of 64 canaries are members, which fair coins"),
            ([0.5] * 4, [0, 1] * 2, {}, "4 guesses are too few: .* make at least 5"),
            ([0.5] * 64, [0, 1] * 32, {"guesses": [(40, 30)]}, "has .40, 30. for 64 canaries"),
            ([0.5] * 64, [0, 1] * 32, {"guesses": [(-1, 30)]}, "has .-1, 30. for 64 canaries"),
            ([0.5] * 64, [0, 1] * 32, {"guesses": [(32, 32), (2, 2)]}, "4 guesses are too few"),
            ([0.5] * 64, [0, 1] * 32, {"guesses": []}, "guesses is empty"),
            ([0.5] * 64, [0, 1] * 32, {"delta": 1.5}, "delta is 1.5: allowed is .0, 1."),
            ([0.5] * 64, [0, 1] * 32, {"confidence": 2}, "confidence is 2"),
        ],
    )
    def test_one_run_refuses(
        self, scores: list, membership: list, settings: dict, message: str
    ) -> None:
        arguments: dict[str, Any] = {"delta": DELTA} | settings
        with pytest.raises(ValueError, match=message):
            one_run_lower_bound(scores, membership, **arguments)

    def test_conversions_and_the_gaussian_bound_refuse_delta_zero(self) -> None:
        for call in (
            lambda: gaussian_lower_bound([0.0] * 100, [1.0] * 100, delta=0),
            lambda: mu_to_epsilon(1.0, 0),
            lambda: epsilon_to_mu(1.0, 0),
        ):
            with pytest.raises(ValueError, match=r"delta is 0: allowed is .0, 1."):
                call()
        with pytest.raises(ValueError, match="mu is -1"):
            mu_to_epsilon(-1.0, DELTA)
        with pytest.raises(ValueError, match="epsilon is inf"):
            epsilon_to_mu(math.inf, DELTA)

    def test_what_is_not_numbers_is_refused(self) -> None:
        with pytest.raises(TypeError, match="scores_out must be numbers"):
            gaussian_lower_bound(["a"] * 100, [1.0] * 100, delta=DELTA)  # type: ignore[list-item]
