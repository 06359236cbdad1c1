"""The engine as plain functions, without noise: for tests, analysis and research.

`loss_fn(model, batch)` returns the vector of per-sample losses, of shape [n].

>>> import torch, psac
>>> model = torch.nn.Linear(2, 1, bias=False)
>>> batch = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
>>> per_sample_norms(model, lambda m, x: m(x).squeeze(1), batch)
tensor([5., 1.])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..clipping import ClippingRule, safe_weights
from .capture import Captured, Rows, capture, capture_single
from .errors import PrivacyError, announce
from .graph import Graph, trace
from .groups import TOGETHER
from .loop import loop
from .plan import Plan
from .planner import Forward
from .precision import summed_in
from .proof import first_that_fits, plan_or_none
from .samples import Batch
from .training import refuse_modules, silenced, trainable

LossFunction = Callable[[nn.Module, Any], Tensor]


def per_sample_norms(
    model: nn.Module, loss_fn: LossFunction, batch: Any, *, method: str = "auto"
) -> Tensor:
    """The gradient norm of each sample's own loss over all trainable parameters, shape [n].

    Guarantee: equal to a loop over samples by plain autograd (to float rounding), proved on a
    few samples at every call; a model whose samples leak into each other raises `NotIsolated`.
    `method="loop"` runs that loop.
    """
    return norms_of(captured_by(model, loss_fn, batch, method))


def weighted_gradient(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    clipping: ClippingRule,
    *,
    method: str = "auto",
) -> dict[str, Tensor]:
    """Sum over samples of weight(norm) * gradient, by parameter name: the private sum before noise.

    Guarantee: every sample's part has norm <= clipping.bound, whatever the rule returns; a sample
    with a non-finite gradient adds zero. Parameters that the loss does not reach have zero sums.
    Sums are of float32 at least, for half-precision parameters too: rounded to those, they would
    move by more than the bound.
    """
    captured = captured_by(model, loss_fn, batch, method)
    norms, floor = norms_of(captured), captured.floor()
    if floor is not None:
        norms = norms.maximum(floor)
    captured.zero_samples(~torch.isfinite(norms))
    sums = captured.weighted_sums([safe_weights(clipping, norms)], TOGETHER)
    return {
        name: sums.get(name, torch.zeros_like(p)).to(summed_in(p.dtype))
        for name, p in trainable(model).items()
    }


def captured_by(
    model: nn.Module, loss_fn: LossFunction, batch: Any, method: str
) -> Captured | Rows:
    if method not in ("auto", "loop"):
        raise ValueError(f"method {method!r} is unknown. Known: 'auto', 'loop'.")
    study = Study.of(model, loss_fn, batch)
    if method == "loop":
        return study.captured(None)
    plan = study.plan()
    if study.reason:
        announce(model, study.reason)
    return study.captured(plan)


@dataclass
class Study:
    """One forward of a loss function, and the ways to find its samples again."""

    model: nn.Module
    loss_fn: LossFunction
    batch: Any
    names: dict[int, str]
    losses: Tensor
    graph: Graph
    forward: Forward
    error: float | None = None  # relative distance to the loop in the proof
    reason: str = ""  # why no plan serves, if none does

    @classmethod
    def of(cls, model: nn.Module, loss_fn: LossFunction, batch: Any) -> Study:
        refuse_modules(model)
        names = {id(p): name for name, p in trainable(model).items()}
        with torch.enable_grad(), silenced(model):
            losses = vector(loss_fn(model, batch))
        graph = trace([losses], names) if losses.requires_grad else None
        if graph is None or not graph.parameters:
            raise PrivacyError("the losses depend on no trainable parameter of the model.")
        reading = next(Batch.readings(batch, len(losses)))
        return cls(
            model,
            loss_fn,
            batch,
            names,
            losses,
            graph,
            cls._forward(model, loss_fn, names, reading),
        )

    @staticmethod
    def _forward(
        model: nn.Module, loss_fn: LossFunction, names: dict[int, str], reading: Batch
    ) -> Forward:
        def run(tree: Any) -> list[Tensor]:
            with silenced(model):
                return [vector(loss_fn(model, tree))]

        return Forward(model, names, run, reading)

    @property
    def num_samples(self) -> int:
        return len(self.losses)

    @property
    def ones(self) -> list[Tensor | None]:
        return [torch.ones_like(self.losses)]

    def run(self) -> Tensor:
        with torch.enable_grad(), silenced(self.model):
            return vector(self.loss_fn(self.model, self.batch))

    def again(self) -> Study:
        """The same on a fresh graph."""
        losses = self.run()
        return replace(self, losses=losses, graph=trace([losses], self.names))

    def plan(self) -> Plan | None:
        """A proved plan; None if only the loop over samples serves, with `reason` saying why."""
        if self.num_samples <= 1:
            return None
        self.forward, plan, result = first_that_fits(
            (
                self._forward(self.model, self.loss_fn, self.names, reading)
                for reading in self.readings()
            ),
            lambda forward: plan_or_none(self.graph, forward, self.ones, False),
        )
        if plan is None:
            self.reason = str(result)
        else:
            self.error = float(result)
        return plan

    def readings(self) -> Iterator[Batch]:
        return Batch.readings(self.batch, self.num_samples)

    def captured(self, plan: Plan | None) -> Captured | Rows:
        if plan is not None:
            return capture(
                self.graph, plan, [self.losses], [torch.ones_like(self.losses)], self.num_samples
            )
        if self.num_samples == 0:
            return Rows({}, 0)
        if self.num_samples == 1:
            found, _ = capture_single(self.graph, [self.losses], [torch.ones_like(self.losses)])
            return Rows({name: grad.unsqueeze(0) for name, grad in found.items()}, 1)
        return loop(self.forward, [self.losses], self.ones, False)


def norms_of(captured: Captured | Rows) -> Tensor:
    (squared,) = captured.norms_squared(TOGETHER)
    return torch.zeros(captured.num_samples) if squared is None else squared.sqrt()


def vector(losses: Any) -> Tensor:
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        given = (
            f"a tensor of shape {list(losses.shape)}"
            if isinstance(losses, Tensor)
            else type(losses).__name__
        )
        raise ValueError(
            f"loss_fn returned {given}; it must return one loss per sample, a tensor of shape [n]. "
            "Use reduction='none' and reduce every dimension but the batch's."
        )
    return losses
