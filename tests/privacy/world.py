"""Neighbouring batches, and what one record moves.

A world either has the record or not.  Cases take batches from it and give losses back; the sums of
clipped gradients are kept.  Two worlds that differ in nothing but the record are then compared, a
step at a time: where it has the record the sums may be one bound apart, elsewhere not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import psac
from psac.gradients import ClippedSum, Evaluator

FEATURES, CLASSES, RECORDS = 4, 3, 12
# "a": a batch that may have the record; "b": always the same one.  What is learned or checked in
# the first step must hold in later ones, and the other way round.
BATCHES = {"cold": "abab", "warm": "bbab"}


class World:
    def __init__(
        self, clipping: Any, order: str, outlier: float, *, has_record: bool, replaced: bool = False
    ) -> None:
        self.clipping, self.order, self.outlier = clipping, BATCHES[order], outlier
        self.has_record, self.replaced = has_record, replaced
        self.sums: list[tuple[bool, list[Tensor]]] = []  # may it have the record, and the sums
        self.ways: list[str] = []
        self._total: ClippedSum | None = None
        self._notes: list[str] = []
        self._ledgers: list[Any] = []

    # Records
    def of_records(self, ordinary: Tensor, record: Tensor) -> Tensor:
        """The record comes first: positions, and what is remembered, are then those of others."""
        if self.has_record:
            return torch.cat([record, ordinary])
        return torch.cat([torch.zeros_like(record), ordinary]) if self.replaced else ordinary

    def inputs(self, *shape: int, seed: int = 1, may_have: bool = True, n: int = RECORDS) -> Tensor:
        """[n, *shape], with the outlier or without."""
        values = torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))
        return (
            self.of_records(values, torch.full((1, *shape), self.outlier)) if may_have else values
        )

    def labels(self, *, seed: int = 1, may_have: bool = True, n: int = RECORDS) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randint(0, CLASSES, (n,), generator=generator)
        return self.of_records(values, torch.zeros(1, dtype=torch.long)) if may_have else values

    def batch(self, may_have: bool = True) -> tuple[Tensor, Tensor]:
        seed, size = (1, RECORDS) if may_have else (7, RECORDS + self.replaced)
        given = {"seed": seed, "may_have": may_have, "n": size}
        return self.inputs(FEATURES, **given), self.labels(**given)

    # Steps by the engine
    def steps(
        self, model: nn.Module, loss: Callable, batch: Callable[[bool], Any] | None = None
    ) -> None:
        """The same function in every step."""
        for given in self.batches(model, batch):
            self.step(loss, given)

    def batches(
        self, model: nn.Module, batch: Callable[[bool], Any] | None = None
    ) -> Iterator[Any]:
        """Batches, each of which is given to `step`."""
        self._total = ClippedSum(Evaluator(model), self.clipping)
        self._total.evaluator.on_warning = self._notes.append
        for letter in self.order:
            yield (batch or self.batch)(letter == "a")
            self.sums.append((letter == "a", list(self._total.collect().values())))

    def step(self, loss: Callable, batch: Any) -> psac.gradients.Sensitive:
        assert self._total is not None
        sensitive = self._total.add(loss, batch)
        self.ways.append(sensitive.way)
        return sensitive

    def noted(self) -> bool:
        """Whether the ledger says that something is wrong."""
        return bool(self._notes) or any(ledger.warnings for ledger in self._ledgers)

    # Steps of a whole run
    def training(
        self,
        model: nn.Module,
        *,
        steps: int = 3,
        dataset: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
        clipping: Any = None,
        **settings: Any,
    ) -> Training:
        """A private run whose every step has all records, without noise."""
        data = TensorDataset(*self.batch()) if dataset is None else dataset
        optimizer = optimizer or Recording(model.parameters(), lr=0.0)
        private = psac.make_private(
            model,
            optimizer,
            data,
            batch_size=len(data.dataset if hasattr(data, "dataset") else data),
            steps=steps,
            noise_multiplier=0.0,
            delta=1e-5,
            seed=0,
            clipping=self.clipping if clipping is None else clipping,
            **settings,
        )
        self._ledgers.append(private.ledger)
        return Training(self, private)


class Recording(torch.optim.SGD):
    """Keeps what it is given.  Its learning rate is 0, so that later steps can be compared."""

    def step(self, closure: Any = None) -> Any:
        self.given = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        return super().step(closure)


class Training:
    """A private run: what it releases is the gradient, and whatever else moves a parameter."""

    def __init__(self, world: World, private: Any) -> None:
        self.world, self.private = world, private

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.private.close()

    def batches(self) -> Iterator[Any]:
        """All batches of all steps."""
        private = self.private
        while private.steps_taken < private.planned_steps:
            for batch in private.loader:
                taken = private.steps_taken
                before = [p.detach().clone() for p in private.parameters.values()]
                yield batch
                if private.sensitive is not None:
                    self.world.ways.append(private.sensitive.way)
                if private.steps_taken > taken:
                    self._keep(before)

    def _keep(self, before: list[Tensor]) -> None:
        private, optimizer = self.private, self.private.optimizer
        parameters = private.parameters.values()
        released = [
            (grad + p.detach() - was) * private.expected_batch_size
            for p, was, grad in zip(parameters, before, optimizer.given, strict=True)
        ]
        self.world.sums.append((True, released))


def difference(first: World, second: World) -> tuple[float, float]:
    """In bounds: the largest distance in steps that have the record, and in those that do not."""
    found = {True: 0.0, False: 0.0}
    assert len(first.sums) == len(second.sums) > 0
    for (may_have, own), (_, other) in zip(first.sums, second.sums, strict=True):
        squares = [
            float((a.double() - b.double()).abs().square().sum())
            for a, b in zip(own, other, strict=True)
        ]
        distance = sum(squares) ** 0.5 / first.clipping.bound
        found[may_have] = max(found[may_have], distance)
        assert distance == distance, "a sum is not a number"
    return found[True], found[False]


def network(*, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


class Before(nn.Module):
    """The network, behind a function of its inputs."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.network = function, network()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.function(x))
