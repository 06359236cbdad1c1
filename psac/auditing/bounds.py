"""From an attack's scores to a lower bound on epsilon that holds with a stated confidence.

An attack scores what a mechanism released: a higher score means that a canary seems to be IN the
data.  The bounds turn scores into an epsilon e, and hold for any attack: if the mechanism is
(e0, delta)-DP, then e <= e0 with probability at least `confidence` over the runs.  So an e above
the promised epsilon shows a defect; a small e shows nothing.

    gaussian          mu >= z(1 - FPR) - z(FNR), mu -> e by the profile    arXiv:2302.07956
    clopper_pearson   e >= log((1 - delta - FNR) / FPR), also swapped      arXiv:2006.07709
    one_run           v of r guesses on m canaries in one run are right    arXiv:2305.08846

The first two compare many runs without the canary to many with it.  FPR and FNR are Clopper-Pearson
upper limits of the error rates of "score >= threshold", at (1 - confidence) / 2 each; z is the
quantile of the normal law.  Choosing a threshold costs confidence, so it is chosen on one quarter
of the scores, picked at random with a fixed seed, and the rates are counted on the rest; a
`threshold` that was fixed beforehand uses them all.  N(0, 1) against N(mu, 1) has the profile
(arXiv:1905.02383)

    delta(e) = Phi(mu / 2 - e / mu) - exp(e) Phi(-mu / 2 - e / mu)

`one_run` rejects e when P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i < 1 - confidence, where W
is binomial(r, 1 / (1 + exp(-e))) (Theorem 5.2 there), and divides 1 - confidence by the number of
ways to guess that it tries.

Left to the caller: independent runs; scores that depend on the release alone; the relation (adding
a canary audits add/remove); and for `gaussian`, that the mechanism is Gaussian.  An infinite score
counts as the largest number; NaN is refused.

>>> bound = clopper_pearson_lower_bound([0.0] * 1000, [1.0] * 1000, delta=1e-5, threshold=0.5)
>>> print(bound)
epsilon >= 5.60 at delta 1e-05, confidence 95% (clopper_pearson: FPR <= 0.00368, FNR <= 0.00368)
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from scipy import special
from torch import Tensor

from psac.checks import number

Vector = Sequence[float] | np.ndarray | Tensor

TUNING_SHARE = 4  # One score in this many chooses the threshold.
CAUTION = 10  # The choice uses a tenth of the error, so that no lucky tail is chosen.
FEWEST_GUESSES = 32  # The fewest guesses that are tried by default.
FAIR = 1e-9  # Coins that are more uneven than this probability allows are not fair.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """The mechanism is not (e, delta)-DP for any e < `epsilon`, and the numbers that show it.

    The two rates are upper limits, not estimates; `mu` is a lower limit.  Fields that a method does
    not use are None.
    """

    epsilon: float
    delta: float
    confidence: float
    method: Literal["gaussian", "clopper_pearson", "one_run"]
    threshold: float | None = None
    false_positive_rate: float | None = None
    false_negative_rate: float | None = None
    mu: float | None = None
    canaries: int | None = None
    guessed: int | None = None
    correct: int | None = None

    def __str__(self) -> str:
        if self.method == "one_run":
            reason = f"{self.correct} of {self.guessed} guesses right, {self.canaries} canaries"
        else:
            reason = f"FPR <= {self.false_positive_rate:.3g}, FNR <= {self.false_negative_rate:.3g}"
        if self.mu is not None:
            reason += f", mu >= {self.mu:.3g}"
        return (
            f"epsilon >= {self.epsilon:.2f} at delta {self.delta:g}, "
            f"confidence {100 * self.confidence:g}% ({self.method}: {reason})"
        )


def gaussian_lower_bound(
    scores_out: Vector,
    scores_in: Vector,
    *,
    delta: float,
    confidence: float = 0.95,
    threshold: float | None = None,
) -> Bound:
    """The tighter bound, for a mechanism whose best attack is N(0, 1) against N(mu, 1).

    That holds for Gaussian noise on a sum where every record takes part, such as one step at
    sampling rate 1, and for compositions of such steps.  Elsewhere, as under Poisson sampling, the
    epsilon may exceed the true one: use `clopper_pearson_lower_bound` there.  Unless `threshold` is
    given, a random quarter of the scores chooses it and only the rest are counted.
    """
    _check_levels(delta, confidence, deltas="(0, 1)")

    def largest_mu(positive: Any, negative: Any) -> Any:
        return -special.ndtri(positive) - special.ndtri(negative)

    mu, test = _judge(scores_out, scores_in, confidence, threshold, largest_mu)
    return Bound(
        epsilon=mu_to_epsilon(mu, delta),
        delta=delta,
        confidence=confidence,
        method="gaussian",
        mu=mu,
        **test,
    )


def clopper_pearson_lower_bound(
    scores_out: Vector,
    scores_in: Vector,
    *,
    delta: float,
    confidence: float = 0.95,
    threshold: float | None = None,
) -> Bound:
    """The bound without assumptions on the mechanism: at most log(n / 5) or so for n runs a side.

    delta = 0 is allowed.  Unless `threshold` is given, a random quarter of the scores chooses it
    and only the rest are counted.
    """
    _check_levels(delta, confidence)

    def largest_epsilon(positive: Any, negative: Any) -> Any:
        power = np.maximum(1 - delta - np.stack([negative, positive]), np.finfo(float).tiny)
        return np.log(power / np.stack([positive, negative])).max(axis=0)

    epsilon, test = _judge(scores_out, scores_in, confidence, threshold, largest_epsilon)
    return Bound(
        epsilon=epsilon, delta=delta, confidence=confidence, method="clopper_pearson", **test
    )


def one_run_lower_bound(
    scores: Vector,
    membership: Vector,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: Sequence[tuple[int, int]] | None = None,
) -> Bound:
    """The bound from ONE run in which an independent fair coin decided on each canary.

    `membership` tells which canaries were in.  A pair (a, b) of `guesses` takes the a highest
    scores for members, the b lowest for non-members, and abstains from the rest.  Several pairs
    share the allowed error evenly, and the best one counts.  Fix their number and each a + b before
    the run; how a + b is split may follow the scores, such as the numbers of positive and negative
    ones, but never the membership.  The default tries all canaries, the outer half, the outer
    quarter, and so on, as many at either end.  Equal scores are put in random order.  delta = 0 is
    allowed.
    """
    _check_levels(delta, confidence)
    values = _vector(scores, "scores")
    members = _coins(membership, len(values))
    pairs = _pairs(guesses, len(values), 1 - confidence)
    ranked = members[_by_falling_score(values)]

    def bound(guessed_in: int, guessed_out: int) -> Bound:
        rejected = ~ranked[len(ranked) - guessed_out :]
        correct = int(ranked[:guessed_in].sum() + rejected.sum())
        guessed = guessed_in + guessed_out
        level = (1 - confidence) / len(pairs)
        return Bound(
            epsilon=_one_run_epsilon(correct, guessed, len(values), delta, level),
            delta=delta,
            confidence=confidence,
            method="one_run",
            canaries=len(values),
            guessed=guessed,
            correct=correct,
        )

    return max((bound(*pair) for pair in pairs), key=operator.attrgetter("epsilon"))


def mu_to_epsilon(mu: float, delta: float) -> float:
    """The epsilon at `delta` of N(0, 1) against N(mu, 1), rounded down by at most one in 1e9."""
    number("mu", mu, "[0, inf)")
    _check_levels(delta, deltas="(0, 1)")
    return _end_of_interval(lambda epsilon: _gaussian_delta(mu, epsilon) > delta)


def epsilon_to_mu(epsilon: float, delta: float) -> float:
    """The mu whose profile passes through (epsilon, delta), rounded down by at most one in 1e9."""
    number("epsilon", epsilon, "[0, inf)")
    _check_levels(delta, deltas="(0, 1)")
    return _end_of_interval(lambda mu: _gaussian_delta(mu, epsilon) <= delta)


def _gaussian_delta(mu: float, epsilon: float) -> float:
    if mu == 0:
        return 0.0
    # exp(e) alone would overflow where its product with Phi is small.
    loss = math.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu))
    return float(special.ndtr(mu / 2 - epsilon / mu)) - loss


def _end_of_interval(holds: Callable[[float], bool]) -> float:
    """The end of the interval from 0 on which `holds` is true, from below; 0 if it is empty."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high and high > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _judge(
    scores_out: Vector,
    scores_in: Vector,
    confidence: float,
    threshold: float | None,
    merit: Callable[[Any, Any], Any],
) -> tuple[float, dict[str, Any]]:
    """The merit >= 0 of a test that did best on the tuning scores, judged by the others."""
    outs, ins = _vector(scores_out, "scores_out"), _vector(scores_in, "scores_in")
    _check_counts(outs, ins, confidence, split=threshold is None)
    level = (1 - confidence) / 2
    if threshold is None:
        tuning_outs, outs = _split(outs)
        tuning_ins, ins = _split(ins)
        thresholds = _thresholds(tuning_outs, tuning_ins)
        merits = merit(*_error_limits(tuning_outs, tuning_ins, thresholds, level / CAUTION))
        threshold = float(thresholds[np.argmax(merits)])
    elif math.isnan(threshold):
        raise ValueError("threshold is nan: pass a number, or None to have it chosen.")
    positive, negative = _error_limits(outs, ins, np.array([threshold]), level)
    return max(0.0, merit(positive, negative).item()), {
        "threshold": float(threshold),
        "false_positive_rate": positive.item(),
        "false_negative_rate": negative.item(),
    }


def _split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tuning scores and the others, mixed so that the order in which they came has no meaning."""
    mixed = values[np.random.default_rng(0).permutation(len(values))]
    return mixed[: len(values) // TUNING_SHARE], mixed[len(values) // TUNING_SHARE :]


def _thresholds(outs: np.ndarray, ins: np.ndarray) -> np.ndarray:
    """The middles between neighbouring scores, and one below them all."""
    values = np.unique(np.concatenate([outs, ins]))
    return np.concatenate([values[:1], values[:-1] / 2 + values[1:] / 2])


def _error_limits(
    outs: np.ndarray, ins: np.ndarray, thresholds: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Upper limits of both error rates; each is too low with probability at most `level`."""
    positives = len(outs) - np.searchsorted(np.sort(outs), thresholds)
    negatives = np.searchsorted(np.sort(ins), thresholds)
    return _upper_limit(positives, len(outs), level), _upper_limit(negatives, len(ins), level)


def _upper_limit(errors: np.ndarray, trials: int, level: float) -> np.ndarray:
    """Clopper-Pearson: the rate at which so few errors have probability `level`."""
    limits = special.betaincinv(errors + 1, np.maximum(trials - errors, 1), 1 - level)
    return np.where(errors == trials, 1.0, limits)


def _one_run_epsilon(
    correct: int, guessed: int, canaries: int, delta: float, level: float
) -> float:
    # For each i the formula is a mean of g(W) with g = 0, then 2 m delta / i, then 1 as W grows;
    # g passes `level` once, hence so does its mean as q grows: the rejected epsilons are [0, end).
    return _end_of_interval(
        lambda epsilon: _p_value(correct, guessed, canaries, epsilon, delta) < level
    )


def _p_value(correct: int, guessed: int, canaries: int, epsilon: float, delta: float) -> float:
    """The most that (epsilon, delta)-DP allows for the probability of so many correct guesses."""
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(_tail(np.array(correct), guessed, accuracy))
    if delta == 0 or correct == 0:
        return tail
    steps = np.arange(1, correct + 1)
    slope = float(np.max((_tail(correct - steps, guessed, accuracy) - tail) / steps))
    return tail + 2 * canaries * delta * slope


def _tail(count: np.ndarray, trials: int, accuracy: float) -> np.ndarray:
    """P[W >= count] for W binomial(trials, accuracy)."""
    tail = special.betainc(np.maximum(count, 1), trials - np.maximum(count, 1) + 1, accuracy)
    return np.where(count <= 0, 1.0, tail)


def _by_falling_score(values: np.ndarray) -> np.ndarray:
    """Indices by score; a tie must not be broken by position, which may follow the membership."""
    mixed = np.random.default_rng(0).permutation(len(values))
    return mixed[np.argsort(-values[mixed], kind="stable")]


def _pairs(
    guesses: Sequence[tuple[int, int]] | None, canaries: int, error: float
) -> list[tuple[int, int]]:
    """The ways to guess, each long enough for a bound above 0 when all guesses are right."""
    if guesses is None:
        halvings = range(max(1, (canaries // FEWEST_GUESSES).bit_length()))
        guesses = [(-(-(canaries >> h) // 2), (canaries >> h) // 2) for h in halvings]
    if not guesses:
        raise ValueError("guesses is empty: pass pairs such as [(50, 50)], or None.")
    fewest = math.floor(math.log2(len(guesses) / error)) + 1
    for guessed_in, guessed_out in guesses:
        if min(guessed_in, guessed_out) < 0 or guessed_in + guessed_out > canaries:
            raise ValueError(
                f"guesses has ({guessed_in}, {guessed_out}) for {canaries} canaries: a pair is two "
                "counts >= 0 that add up to at most the number of canaries."
            )
        if guessed_in + guessed_out < fewest:
            raise ValueError(
                f"{guessed_in + guessed_out} guesses are too few: even if all were right, that "
                f"could be luck. With {len(guesses)} way(s) to guess at this confidence, make at "
                f"least {fewest}."
            )
    return list(guesses)


def _coins(membership: Vector, canaries: int) -> np.ndarray:
    coins = _vector(membership, "membership")
    if len(coins) != canaries:
        raise ValueError(
            f"membership has {len(coins)} entries for {canaries} scores: pass one for each canary."
        )
    if not np.isin(coins, (0, 1)).all():
        raise ValueError("membership may hold True and False, or 1 and 0: pass coins > 0 for ±1.")
    members = int(coins.sum())
    if 2 * float(_tail(np.array(max(members, canaries - members)), canaries, 0.5)) < FAIR:
        raise ValueError(
            f"{members} of {canaries} canaries are members, which fair coins do not give. Include "
            "each canary with probability 1/2, independently, or the bound means nothing."
        )
    return coins.astype(bool)


def _vector(values: Vector, name: str) -> np.ndarray:
    """A one-dimensional float64 array without NaN; infinities become the largest numbers."""
    try:
        vector = torch.as_tensor(values, dtype=torch.float64).detach().cpu().numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be numbers in a list, an array or a tensor.") from error
    if vector.ndim != 1 or len(vector) == 0:
        raise ValueError(f"{name} has shape {vector.shape}: pass one dimension, not empty.")
    if np.isnan(vector).any():
        raise ValueError(
            f"{name} has {np.isnan(vector).sum()} NaN of {len(vector)}. Dropping them would bias "
            "the bound: give such runs a score, such as -inf, in the attack."
        )
    return np.clip(vector, -np.finfo(float).max, np.finfo(float).max)


def _check_counts(outs: np.ndarray, ins: np.ndarray, confidence: float, *, split: bool) -> None:
    """Enough runs that an attack without errors would show an epsilon above 0."""
    fewest = math.floor(math.log2(2 / (1 - confidence))) + 1
    if split:
        fewest = max(fewest + (fewest - 1) // (TUNING_SHARE - 1), TUNING_SHARE)
    for name, values in (("scores_out", outs), ("scores_in", ins)):
        if len(values) < fewest:
            raise ValueError(
                f"{name} has {len(values)} scores, too few for a bound above 0 even if the attack "
                f"is never wrong. Pass at least {fewest} at confidence {confidence}; thousands for "
                "a tight bound."
            )


def _check_levels(delta: float, confidence: float = 0.95, *, deltas: str = "[0, 1)") -> None:
    number("delta", delta, deltas, advice="Take that of the promise that is audited, such as 1e-5.")
    number("confidence", confidence, "(0, 1)", advice="Try 0.95.")
