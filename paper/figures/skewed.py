"""A problem whose constants are known, to hold the bounds of `paper.theory` against the truth.

    f(x) = L0 |x|^2 / 2,    gradient of a sample = L0 x + xi e1

xi is `height` for a share of samples and -height share / (1 - share) for the rest: its mean is 0.
L1 = 0, tau1 = 0 and tau0 = height exactly.  The samples are skewed: where grad f = 0, a weighted
mean of gradients is not 0, so training comes to rest elsewhere, at `resting_gradient`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize

from paper.theory import Assumptions, Schedule

Weight = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skewed:
    """`share` is at most a half, so that `height` is the larger of the two."""

    L0: float = 1.0
    height: float = 0.9
    share: float = 0.1

    @property
    def assumptions(self) -> Assumptions:
        return Assumptions(L0=self.L0, L1=0.0, tau0=self.height, tau1=0.0)

    @property
    def heights(self) -> np.ndarray:
        return np.array([self.height, -self.height * self.share / (1 - self.share)])

    def resting_gradient(self, weight: Weight) -> float:
        """|grad f| where the expected weighted gradient is 0: the limit of a perfect training."""
        shares = np.array([self.share, 1 - self.share])

        def expected(gradient: float) -> float:
            found = gradient + self.heights
            return float(np.sum(shares * weight(np.abs(found)) * found))

        found: Any = optimize.brentq(expected, -self.height, self.height, xtol=1e-14)
        return abs(float(found))

    def smallest_gradient(
        self,
        weight: Weight,
        schedule: Schedule,
        learning_rate: float,
        *,
        start: float,
        repetitions: int,
        seed: int,
    ) -> np.ndarray:
        """min_t |grad f(x_t)| of training from |grad f| = start, in each repetition."""
        generator = np.random.default_rng(seed)
        parameters, batch = int(schedule.num_parameters), int(schedule.batch_size)
        x = np.full((repetitions, parameters), start / self.L0 / np.sqrt(parameters))
        smallest = np.full(repetitions, np.inf)
        for _ in range(int(schedule.num_steps)):
            gradient = self.L0 * x
            square = np.einsum("rp,rp->r", gradient, gradient)
            smallest = np.minimum(smallest, square)
            rare = generator.binomial(batch, self.share, repetitions)
            counts = np.stack([rare, batch - rare])
            along = self.heights[:, None]
            norms = np.sqrt(np.maximum(square + 2 * along * gradient[:, 0] + along**2, 0))
            weights = counts * weight(norms)
            step = weights.sum(0)[:, None] * gradient
            step[:, 0] += (weights * along).sum(0)
            step += float(schedule.noise_multiplier) * generator.standard_normal(x.shape)
            x -= learning_rate / batch * step
        return np.sqrt(smallest)
