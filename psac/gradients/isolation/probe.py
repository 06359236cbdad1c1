"""Does something change between two steps that no walk over objects reaches?

A file, a cache, another thread, a setting of a library: whatever a function reads, its result
shows.  After a step a few records are computed, and before the next one the same ones again, by the
same parameters and random numbers.  Another result means that something else has changed.

It is a test, made in the first steps and at secret ones, and costs a few forwards of one record.
"""

from __future__ import annotations

import secrets
from typing import Any

import torch
from torch import Tensor, nn

from psac.gradients import trees
from psac.gradients.isolation.generators import same_generators, seed_all
from psac.gradients.isolation.outside import code_of
from psac.gradients.isolation.state import State
from psac.gradients.trees import LossFunction, own_copy

FIRST_STEPS = 3
SECRET_STEPS = 32  # one of so many is tested later
ROUNDING = 1e-5  # relative; the same record by the same kernels


class Probe:
    """A few records, and what came out for them."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self._steps = model, 0
        self._left: tuple[Any, list[Any], int, list[Tensor]] | None = None

    def leave(self, loss: LossFunction, batch: Any) -> None:
        """After the optimizer's step."""
        self._steps += 1
        self._left = None
        if self._steps > FIRST_STEPS and secrets.randbelow(SECRET_STEPS):
            return
        last = trees.num_records(batch) - 1
        chosen = [trees.record(batch, k) for k in sorted({0, last // 2, last})]
        records = [trees.map_tensors(record, own_copy) for record in chosen]
        seed = secrets.randbits(31)
        first, second = self._values(loss, records, seed, times=2)
        if are_equal(first, second):  # it draws no random numbers of its own
            self._left = code_of(loss), records, seed, first

    def forget(self) -> None:
        """Parameters change, or something that is public."""
        self._left = None

    def has_changed(self, loss: LossFunction) -> bool:
        """Before the next step."""
        left, self._left = self._left, None
        if left is None or left[0] != code_of(loss):
            return False
        _, records, seed, before = left
        return not are_equal(before, *self._values(loss, records, seed))

    def _values(
        self, loss: LossFunction, records: list[Any], seed: int, times: int = 1
    ) -> list[list[Tensor]]:
        """So many times, each from the same state; none if the function fails without vmap."""
        state, values = State({"model": self.model, "loss": loss}), [[] for _ in range(times)]
        torch.clear_autocast_cache()  # of weights before the optimizer's step
        for results in values:
            try:
                with torch.enable_grad(), same_generators():
                    for record in records:
                        seed_all(seed)
                        result = trees.call(loss, self.model, trees.map_tensors(record, own_copy))
                        results.append(result.detach().double().clone())
            except Exception:  # noqa: BLE001 - where the function is evaluated, it tells of it
                results.clear()
            finally:
                state.restore()
        return values


def are_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    """Up to the rounding of one kernel."""
    return len(first) == len(second) > 0 and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=ROUNDING, atol=0, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )
