"""An attack on the training step as it is shipped: does it keep what its ledger promises?

Each canary is a record whose gradient is huge and points along a coordinate of its own.  Half of
them, by fair coins, are in the data of a real run by `psac.make_private`; the attack reads every
coordinate of the trained parameters.  Coordinates whose canary was left out show the noise alone,
the others the noise and the bound: thousands of independent trials in one run.  What comes out is
compared with the epsilon of the run's own ledger.  With sampling rate 1 the mechanism is Gaussian,
and what is shown comes close to what is promised; below 1, under Poisson sampling, the attack sees
the last parameters alone, and the bound is the weaker one that assumes nothing.

It finds noise that is too small, clipping that does not hold, a division that gives a sample away,
steps that the ledger forgot.  It does not find what shows in other ways (timing, low bits, the
sampler), and says nothing about a user's own data: for that see `Canaries`.

>>> result = audit(noise_multiplier=1.0, canaries=2000, seed=0)
>>> result.passed
True
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psac.auditing.bounds import Bound, clopper_pearson_lower_bound, gaussian_lower_bound
from psac.checks import number
from psac.noise.generators import InsecureNoiseWarning, SecureGenerator, SeededGenerator
from psac.private import make_private
from psac.private.run import Clipping

HUGE = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """What an attack has shown, beside what was promised."""

    bound: Bound
    promised: float

    @property
    def passed(self) -> bool:
        """Whether the attack leaves the promise standing."""
        return self.bound.epsilon <= self.promised

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED: the run is not as private as it says"
        return f"promised epsilon {self.promised:.3f}; shown {self.bound}\n{verdict}"


class Coordinates(nn.Module):
    """One parameter for each canary; a canary's loss is huge times its own."""

    def __init__(self, canaries: int) -> None:
        super().__init__()
        self.table = nn.Embedding(canaries, 1)
        nn.init.zeros_(self.table.weight)

    def forward(self, numbers: Tensor) -> Tensor:
        return -HUGE * self.table(numbers)


def audit(
    *,
    noise_multiplier: float = 1.0,
    clipping: Clipping | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    canaries: int = 20_000,
    steps: int = 1,
    sampling_rate: float = 1.0,
    physical_batch_size: int | None = None,
    seed: int | None = None,
) -> Audit:
    """Attacks the training step of this installation.

    It trains a model in which each record is a canary with a parameter of its own, tells the
    canaries that took part from those that did not, and computes from that which epsilon can be
    excluded. A step takes about 10 ms.

    Args:
        noise_multiplier: Noise of the attacked run.
        clipping: Its clipping rule, which may be your own. The default is `PSAC()`.
        delta: Delta of both epsilons.
        confidence: Probability that a correct step passes.
        canaries: Number of records of which each takes part by the toss of a coin.
        steps: Number of logical steps.
        sampling_rate: Sampling rate of a step.
        physical_batch_size: As for `make_private`.
        seed: Makes the attack repeatable.

    Returns:
        The lower bound that the attack proves, beside the epsilon that the ledger promises. A lower
        bound above the promise means that the step is not as private as it says.

    Raises:
        ValueError: An argument is out of range.

    Examples:
        ```python
        result = psac.audit()
        print(result)
        assert result.passed
        ```
    """
    number("sampling_rate", sampling_rate, "(0, 1]")
    members = coins(canaries, seed)
    model = Coordinates(canaries)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", InsecureNoiseWarning)
        private = stack.enter_context(
            make_private(
                model,
                optimizer,
                torch.from_numpy(np.flatnonzero(members)),
                batch_size=max(1, round(sampling_rate * int(members.sum()))),
                steps=steps,
                noise_multiplier=noise_multiplier,
                delta=delta,
                clipping=clipping,
                physical_batch_size=physical_batch_size,
                seed=seed,
            )
        )
        train(private, steps)
        promised = private.epsilon()
    scores = model.table.weight.detach().squeeze(1).double().numpy()
    method = gaussian_lower_bound if sampling_rate == 1 else clopper_pearson_lower_bound
    bound = method(scores[~members], scores[members], delta=delta, confidence=confidence)
    return Audit(bound=bound, promised=promised)


def loss(model: nn.Module, number: Tensor) -> Tensor:
    """Of one canary."""
    return model(number)


def train(private: Any, steps: int) -> None:
    while private.steps_taken < steps:
        for numbers in private.loader:
            private.step(loss, numbers)


def coins(count: int, seed: int | None) -> np.ndarray:
    """Fair coins: who is in."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)
        generator = SecureGenerator() if seed is None else SeededGenerator(seed).spawn("coins")
    data = np.frombuffer(generator.random_bytes(-(-count // 8)), np.uint8)
    return np.unpackbits(data)[:count].astype(bool)
