"""What several runs on the same records cost together, in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psac.app.cli.progress import price
from psac.app.reporting import numerals

if TYPE_CHECKING:
    from psac.app.reporting.runs import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Price:
    """`epsilon` is None where the ledgers cannot be added up."""

    epsilon: float | None
    delta: float | None
    runs: int
    secure: bool

    @property
    def sentence(self) -> str:
        if self.epsilon is None or self.delta is None:
            return "What all runs cost together is not known: their ledgers do not add up."
        cost = "cost" if self.secure else "would cost, had they no seed,"
        return (
            f"Released together, the {self.runs} runs {cost} epsilon {price(self.epsilon)} "
            f"at delta {numerals.delta(self.delta)}."
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def price_of_all(runs: Sequence[Run]) -> Price:
    """By the sum of their ledgers."""
    from psac.app.reporting.comparing import together

    epsilon, delta = together(runs) or (None, None)
    secure = all(run.secure is True for run in runs)
    return Price(epsilon=epsilon, delta=delta, runs=len(runs), secure=secure)
