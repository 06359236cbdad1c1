"""What a run has spent: its ledger, and what this process knows of it.

Guarantees: a step is in the ledger, and wherever else it is written down, before `spend` returns;
steps that this process has released are never forgotten, whatever earlier state is loaded.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import secrets
import weakref
from collections.abc import Callable, Sequence

from torch import nn

from psac.accounting import Ledger
from psac.checks import positive
from psac.errors import warn
from psac.plan import Plan

# By module and run: what this process has spent. A later run on a module has its own ledger.
trained: weakref.WeakKeyDictionary[nn.Module, dict[str, Ledger]] = weakref.WeakKeyDictionary()
# By run: the steps that this process has released. States that were taken earlier know of fewer.
released: dict[str, int] = {}
TRAINED_BEFORE = "The model was trained before by another private run, which is not in this ledger."
SAVED = "the checkpoint that training went on from was saved"


class Account:
    """The ledger of a run, its plan, and its name.

    Attributes:
        plan: The public constants of the run.
        ledger: What was released, and at which price.
        id: The name of the run; a resumed run keeps it.
        on_release: Told how many steps are spent, before a gradient is handed on.
    """

    def __init__(self, plan: Plan, ledger: Ledger, modules: Sequence[nn.Module]) -> None:
        """`modules` have the parameters that are trained."""
        self.plan, self.ledger, self.id = plan, ledger, secrets.token_hex(8)
        self.on_release: Callable[[int], None] | None = None
        self._modules = modules

    def spend(self, steps: int) -> None:
        """Written down, wherever it is: what comes next may be seen."""
        self.ledger.record(**self.plan.event(), steps=steps)
        if self.id not in released:
            self.enter()
        released[self.id] += steps
        if self.on_release is not None:
            self.on_release(steps)

    def enter(self) -> None:
        """From here on this process knows of the run."""
        released.setdefault(self.id, 0)
        for module in self._modules:
            runs = trained.setdefault(module, {})
            if self.ledger.secure and runs.keys() - {self.id}:
                self.ledger.note_warning(TRAINED_BEFORE)
            runs[self.id] = self.ledger

    def known(self) -> int:
        """How many steps of the run this process knows of."""
        return released[self.id]

    def settle(self) -> None:
        """The ledger knows of all steps that count."""
        released[self.id] = max(released[self.id], self.ledger.steps)

    def lost(self, spent: int) -> int:
        """How many of the `spent` steps the ledger does not know; a seed repeats them for free."""
        return max(0, spent - self.ledger.steps) if self.ledger.secure else 0

    def charge_lost(self, lost: int, skipped: int, place: object) -> None:
        """Counts `lost` steps that `place` does not know of as `skipped` steps of the plan.

        Wherever those were written down, they are: this adds to the ledger alone.
        """
        self.ledger.record(**self.plan.event(), steps=skipped)
        self.ledger.note_warning(f"{lost} steps ran after {SAVED} and count as spent.")
        warn(
            f"{lost} steps ran after {place} was saved and are not in it. What they released "
            f"may have been seen, so they count as spent: {lost} steps fewer are left of the "
            "plan. Save more often to lose fewer.",
        )

    def announce_earlier_runs(self, name: str) -> None:
        """Warns if this process has trained the model `name` before."""
        earlier: dict[str, Ledger] = {}
        for module in self._modules:
            earlier |= trained.get(module, {})
        if earlier and self.ledger.secure:
            steps = " and ".join(str(ledger.steps) for ledger in earlier.values())
            warn(
                f"{name} was trained before in this process, by {steps} private steps, and "
                "private.epsilon() counts this new run alone. If the records are the same, all "
                "runs together cost (earlier.ledger + private.ledger).epsilon(delta). To "
                "go on with an earlier run of the same settings, call "
                "private.load_state_dict(earlier.state_dict()) and private.extend(...).",
            )

    def delta(self, delta: float | None) -> float:
        """The one that is asked for, or that of the plan."""
        delta = self.plan.delta if delta is None else delta
        if delta is None:
            raise ValueError("delta is missing: pass it here or to make_private, such as 1e-5.")
        return delta

    def planned_epsilon(self, delta: float | None) -> float:
        """The privacy loss when all planned steps are done."""
        ledger = copy.deepcopy(self.ledger)
        left = self.plan.steps - ledger.steps
        if left > 0:
            ledger.record(**self.plan.event(), steps=left)
        return ledger.epsilon(self.delta(delta))

    def extend(self, epochs: float | None, steps: int | None) -> float:
        """Plans more steps; the epsilon of all of them, or NaN if no delta is known."""
        if (epochs is None) == (steps is None):
            raise ValueError(f"give epochs or steps, one of them: epochs={epochs}, steps={steps}.")
        more = self.plan.steps_in(epochs) if epochs is not None else positive("steps", steps)
        self.plan = dataclasses.replace(self.plan, steps=self.plan.steps + more)
        return self.planned_epsilon(None) if self.plan.delta is not None else math.nan
