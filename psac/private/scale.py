"""The scale that `AdaptivePSAC` learns, from a noisy count of norms in each step.

Guarantee: the scale is a function of noisy counts alone.  One record moves a count by 1/2, and the
noise of gradients is raised so that both queries together cost what the plan says.
"""

from __future__ import annotations

import torch
from torch import Tensor

from psac import accounting
from psac.clipping.rules import PSAC, AdaptivePSAC
from psac.noise.gaussian import add_noise_
from psac.noise.generators import NoiseGenerator
from psac.plan import Plan


class LearnedScale:
    """`value` is the scale of the next step.  `count` collects one logical batch."""

    def __init__(self, rule: AdaptivePSAC, plan: Plan) -> None:
        self._rule, self._batch_size = rule, plan.expected_batch_size
        self._noise_multiplier = plan.noise_multiplier
        self.value = rule.initial_scale
        self._below = 0.0  # records below the scale, minus those above, / 2

    def rule(self) -> PSAC:
        return self._rule.rule(self.value)

    def count(self, norms: Tensor) -> None:
        self._below += float((norms <= self.value).sum()) - len(norms) / 2

    def forget(self) -> None:
        """What was counted since the last release."""
        self._below = 0.0

    def collect(self) -> Tensor:
        """The count since the last collect, a tensor [1]; it starts anew."""
        below = torch.tensor([self._below], dtype=torch.float64)
        self.forget()
        return below

    def release(self, step: int, below: Tensor, generator: NoiseGenerator) -> None:
        """The noisy count of this step moves the scale."""
        noisy = below.clone()
        if self._noise_multiplier > 0:
            std = self._side_noise() / 2  # one record moves the count by 1/2
            add_noise_([noisy], std=std, generator=generator)
        self.value = self._rule.next_scale(self.value, float(noisy) / self._batch_size, step)

    def noise_for_gradients(self) -> float:
        """The noise multiplier that is left for gradients beside the count."""
        return accounting.without_side_query(self._noise_multiplier, self._side_noise())

    def _side_noise(self) -> float:
        return self._rule.noise_multiplier(self._batch_size, self._noise_multiplier)
