"""The options that describe a training to be priced, by its sampling rate or by its records.

    --sampling-rate 0.01 --steps 1000              probability of a record per step, and steps
    --records 60000 --batch-size 512 --epochs 40   rate and steps follow from the sampling scheme

delta defaults to 1 / (10 records) if the number of records is given.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any

import typer

from psac import sampling as schemes
from psac.accounting.schemes import SCHEMES
from psac.app.cli import completion
from psac.plan import Plan

RELATIONS = tuple(dict.fromkeys(relation for _, relation in SCHEMES))

Rate = Annotated[float | None, typer.Option(help="Probability that a record enters a step.")]
Steps = Annotated[int | None, typer.Option(help="Number of optimizer steps.")]
Records = Annotated[int | None, typer.Option(help="Number of training records.")]
BatchSize = Annotated[int | None, typer.Option(help="Expected batch size.")]
Epochs = Annotated[float | None, typer.Option(help="Number of epochs, instead of --steps.")]
Delta = Annotated[
    float | None,
    typer.Option(help="Probability that the guarantee fails. Default: 1 / (10 records)."),
]
SamplingName = Annotated[
    str,
    typer.Option(
        "--sampling",
        help=f"Sampling scheme. {completion.one_of(completion.samplings)}",
        autocompletion=completion.completer(completion.samplings),
    ),
]
Relation = Annotated[
    str | None,
    typer.Option(
        help=f"Neighbouring data sets: {' or '.join(RELATIONS)}. Default: that of the sampling.",
        autocompletion=completion.completer(lambda: RELATIONS),
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """One field for each option."""

    sampling_rate: Rate = None
    steps: Steps = None
    records: Records = None
    batch_size: BatchSize = None
    epochs: Epochs = None
    delta: Delta = None
    sampling: SamplingName = "poisson"
    relation: Relation = None

    def __post_init__(self) -> None:
        by_rate = self.sampling_rate is not None and self.epochs is None
        by_records = self.sampling_rate is None and None not in (self.records, self.batch_size)
        if not (by_rate or by_records) or (self.steps is None) == (self.epochs is None):
            raise ValueError(
                "give --sampling-rate and --steps, or --records, --batch-size and --epochs (or "
                "--steps)."
            )
        if self.delta is None and self.records is None:
            raise ValueError("give --delta, or --records for the default of 1 / (10 records).")

    def plan(self, **other: str) -> dict[str, Any]:
        """The arguments of `psac.epsilon` and `psac.calibrate`, or with another scheme."""
        if other:
            return dataclasses.replace(self, **other).plan()
        rate, steps = self._rate_and_steps(schemes.get(self.sampling))
        return {
            "sampling": self.sampling,
            "relation": self.relation or _usual_relation(self.sampling),
            "sampling_rate": rate,
            "steps": steps,
            "delta": self.delta or 1 / (10 * (self.records or 1)),
            "num_records": self.records,
        }

    def _rate_and_steps(self, scheme: schemes.Sampling) -> tuple[float, int]:
        if self.sampling_rate is not None and self.steps is not None:
            return _rate_of(scheme, self.sampling_rate), self.steps
        plan = Plan(
            num_records=self.records or 0,
            expected_batch_size=self.batch_size or 0,
            sampling=scheme,
            steps=self.steps or 1,
            noise_multiplier=math.inf,
            delta=self.delta,
        )
        schemes.steps_in(1, plan.num_records, plan.expected_batch_size)  # refuses odd sizes
        steps = self.steps if self.epochs is None else plan.steps_in(self.epochs)
        return plan.sampling_rate, steps or 1


def _usual_relation(sampling: str) -> str:
    return next(relation for name, relation in SCHEMES if name == sampling)


def _rate_of(scheme: schemes.Sampling, rate: float) -> float:
    """The rate itself; for balls-in-bins that of the bins which it needs."""
    if not isinstance(scheme, schemes.BallsInBins) or not 0 < rate <= 1:
        return rate
    bins = round(1 / rate)
    return 1 / (bins if math.isclose(bins * rate, 1, rel_tol=1e-9) else math.ceil(1 / rate))
