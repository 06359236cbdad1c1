"""What the theorems are about: a loss function with its constants, and a schedule of training.

>>> assumed = Assumptions(L0=1.0, L1=0.5, tau0=1.0, tau1=0.5)
>>> float(assumed.L), float(assumed.edge)
(2.0, 2.0)
"""

from __future__ import annotations

import dataclasses
from typing import Any

from paper.theory.arguments import Array, fraction, not_negative, positive

# Fields are numbers or arrays when given, and float64 arrays from then on.


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Assumptions:
    """The paper's Assumptions 1 and 2, with G the norm of the full gradient grad f.

    1: |grad f(x) - grad f(y)| <= (L0 + L1 |grad f(x)|) |x - y|, with L0 > 0 and L1 >= 0.
    2: every sample's gradient is within tau0 + tau1 G of grad f, with tau0 > 0 and 0 <= tau1 < 1.
    """

    L0: Any
    L1: Any
    tau0: Any
    tau1: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "L0", positive("L0", self.L0))
        object.__setattr__(self, "L1", not_negative("L1", self.L1))
        object.__setattr__(self, "tau0", positive("tau0", self.tau0))
        object.__setattr__(self, "tau1", fraction("tau1", self.tau1))

    @property
    def L(self) -> Array:  # noqa: N802
        """L0 + L1 (tau0 + 1), which the paper writes out each time."""
        return self.L0 + self.L1 * (self.tau0 + 1)

    @property
    def kept(self) -> Array:
        """1 - tau1."""
        return 1 - self.tau1

    @property
    def edge(self) -> Array:
        """tau0 / (1 - tau1): where G is larger, no sample's gradient points uphill."""
        return self.tau0 / self.kept


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Training: d parameters, noise multiplier sigma, batch size B, T steps; C = 1."""

    num_parameters: Any
    noise_multiplier: Any
    batch_size: Any
    num_steps: Any

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, positive(field.name, getattr(self, field.name)))

    @property
    def noise(self) -> Array:
        """d sigma^2 / B^2, the expected squared norm of the noise in a step."""
        return self.num_parameters * (self.noise_multiplier / self.batch_size) ** 2
