"""An attack on the training step as shipped: does it keep what its ledger promises?

Each canary is a record with a huge gradient along its own coordinate.  Half of them, by fair coins,
are in the data of a real run of `psac.make_private`; the attack reads every coordinate of the
trained parameters.  Coordinates without their canary show the noise alone, the others noise and
bound: thousands of independent trials in one run.  The result is compared with the epsilon of the
run's own ledger.  At sampling rate 1 the mechanism is Gaussian, and the lower bound comes close to
that epsilon.  Below 1, under Poisson sampling, the attack sees only the last parameters and uses
the weaker bound, which assumes nothing.

It finds noise that is too small, clipping that does not hold, a division that reveals a sample, and
steps missing in the ledger.  It does not find other leaks (timing, low bits, the sampler), and says
nothing about a user's own data: for that see `Canaries`.

>>> result = audit(noise_multiplier=1.0, canaries=2000, seed=0)
>>> result.passed
True
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from psac.auditing.bounds import Bound, clopper_pearson_lower_bound, gaussian_lower_bound
from psac.checks import number
from psac.noise.generators import InsecureNoiseWarning, SecureGenerator, SeededGenerator
from psac.private import Private, make_private
from psac.private.run import Clipping

HUGE = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The lower bound that an attack has shown, beside the promised epsilon."""

    bound: Bound
    promised: float

    @property
    def passed(self) -> bool:
        """Whether the lower bound is at most the promised epsilon."""
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

    It trains a model in which each record is a canary with its own parameter, tells the canaries
    that took part from the others, and computes which epsilon that rules out. A step takes about
    10 ms.

    Args:
        noise_multiplier: Noise of the attacked run.
        clipping: Its clipping rule, which may be your own. The default is `PSAC()`.
        delta: Delta of both epsilons.
        confidence: Probability that a correct step passes.
        canaries: Number of records, each of which takes part with probability 1/2.
        steps: Number of logical steps.
        sampling_rate: Sampling rate of a step.
        physical_batch_size: As for `make_private`.
        seed: Makes the attack repeatable.

    Returns:
        The lower bound on epsilon that the attack shows, beside the epsilon of the ledger. A lower
        bound above it means that the step is less private than the ledger says.

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
    """The loss of one canary."""
    return model(number)


def train(private: Private, steps: int) -> None:
    while private.steps_taken < steps:
        for numbers in private.loader:
            private.step(loss, numbers)


def coins(count: int, seed: int | None) -> np.ndarray:
    """Fair coins: which canaries are in."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)
        generator = SecureGenerator() if seed is None else SeededGenerator(seed).spawn("coins")
    data = np.frombuffer(generator.random_bytes(-(-count // 8)), np.uint8)
    return np.unpackbits(data)[:count].astype(bool)
