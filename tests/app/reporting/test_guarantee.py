"""What is said about attacks is true: never below what the best attack on a Gaussian can do."""

from __future__ import annotations

import pytest
from scipy.stats import norm

import psac
from psac.app.reporting.guarantee import FALSE_POSITIVES, VERDICTS, Meaning, rank


def of_one_release(noise_multiplier: float) -> Meaning:
    ledger = psac.Ledger(secure=True)
    ledger.record(noise_multiplier=noise_multiplier, sampling_rate=1.0, num_records=1000)
    return Meaning.of(ledger)


@pytest.mark.parametrize("mean", [0.05, 0.3, 0.7, 1.5, 3.0])
def test_bounds_hold_for_the_best_attack_on_one_gaussian_and_are_near_it(mean):
    meaning = of_one_release(1 / mean)
    best_guess = norm.cdf(mean / 2)
    best_rate = norm.cdf(norm.ppf(FALSE_POSITIVES) + mean)
    assert best_guess <= meaning.guess <= best_guess + 0.03
    assert best_rate <= meaning.true_positives <= 3 * best_rate + 0.002


def test_without_noise_everything_is_found():
    assert of_one_release(0.0) == Meaning(guess=1.0, true_positives=1.0)


def test_words_get_worse_as_guesses_get_better():
    assert [rank(guess, 1.0) for guess in (0.5, 0.65, 0.8, 1.0)] == [0, 1, 2, 3]
    assert [rank(0.5, epsilon) for epsilon in (1.0, 5.0, 9.0, 20.0)] == [0, 1, 2, 3]
    assert "hardly" in VERDICTS[0][-1]
    assert "weak" in VERDICTS[-1][-1]
