"""The plan of a run: its public constants, such as length, noise and sampling.

Guarantees: of the data, only the number of records enters a plan; calibrated noise keeps the run
at or below the stated epsilon.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from psac import accounting, sampling
from psac.accounting.pricing import checked_delta
from psac.checks import exactly_one, number, positive
from psac.sampling import Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is decided before the first step; `steps` is the planned length."""

    num_records: int
    expected_batch_size: int
    sampling: Sampling
    steps: int
    noise_multiplier: float
    delta: float | None

    @property
    def sampling_rate(self) -> float:
        return self.sampling.sampling_rate(self.num_records, self.expected_batch_size)

    def event(self) -> dict[str, Any]:
        """One step, for the ledger and the accountant."""
        return {
            "sampling": self.sampling,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "num_records": self.num_records,
        }

    def steps_in(self, epochs: float) -> int:
        return sampling.steps_in(epochs, *self._epoch())

    def steps_of_epoch_with(self, step: int) -> range:
        """The steps of the epoch that this step is in."""
        return sampling.steps_of_epoch(sampling.epoch_of(step, *self._epoch()), *self._epoch())

    def epoch_of(self, step: int) -> int:
        return sampling.epoch_of(step, *self._epoch())

    def _epoch(self) -> tuple[int, int]:
        bins = self.sampling.bins(self.num_records, self.expected_batch_size)
        return (bins, 1) if bins > 1 else (self.num_records, self.expected_batch_size)


def plan_run(
    *,
    num_records: int,
    expected_batch_size: int,
    scheme: Sampling,
    length: tuple[float | None, int | None],
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    after: accounting.Ledger | None = None,
) -> Plan:
    """The plan of the run that the user asked for; `after` is what was released before."""
    if not isinstance(scheme, Sampling):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"sampling is {scheme!r}: pass psac.Poisson() or another psac.Sampling.")
    epochs, steps = length
    exactly_one(epochs=epochs, steps=steps)
    exactly_one(epsilon=epsilon, noise_multiplier=noise_multiplier)
    if epsilon is not None and delta is None:
        raise ValueError(
            f"epsilon={epsilon} needs a delta, such as {1 / (10 * num_records):.1e}, which is "
            f"1 / (10 * {num_records} records)."
        )
    plan = Plan(
        num_records=num_records,
        expected_batch_size=expected_batch_size,
        sampling=scheme,
        steps=steps or 1,
        noise_multiplier=noise_multiplier if noise_multiplier is not None else math.inf,
        delta=delta,
    )
    total = plan.steps_in(epochs) if epochs is not None else positive("steps", steps)
    if noise_multiplier is None:
        noise_multiplier = accounting.calibrate(
            epsilon=epsilon,  # type: ignore[arg-type]
            delta=delta,  # type: ignore[arg-type]
            sampling_rate=plan.sampling_rate,
            steps=total,
            sampling=scheme,
            num_records=num_records,
            after=after,
        )
    elif delta is not None:
        checked_delta(delta, num_records)  # calibrating has checked it otherwise
    number("noise_multiplier", noise_multiplier, "[0, inf)")
    return dataclasses.replace(plan, steps=total, noise_multiplier=float(noise_multiplier))
