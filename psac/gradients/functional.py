"""The engine as plain functions, without noise: for tests, analysis and research.

`loss_fn(model, batch)` returns the vector of per-sample losses, of shape [n].

>>> import torch, psac
>>> model = torch.nn.Linear(2, 1, bias=False)
>>> batch = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
>>> per_sample_norms(model, lambda m, x: m(x).squeeze(1), batch)
tensor([5., 1.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..clipping import ClippingRule, safe_weights
from . import loop as loops
from .capture import Captured, Rows, capture, capture_single
from .errors import CannotAssign, NotIsolated, PrivacyError, announce
from .graph import trace
from .planner import Forward, find_plan, prove
from .samples import Batch
from .training import refuse_batch_norm, trainable

LossFunction = Callable[[nn.Module, Any], Tensor]


def per_sample_norms(model: nn.Module, loss_fn: LossFunction, batch: Any, *, method: str = "auto") -> Tensor:
    """The gradient norm of each sample's own loss over all trainable parameters, shape [n].

    Guarantee: equal to a loop over samples by plain autograd (to float rounding), proved on a few samples at every
    call; a model whose samples leak into each other raises `NotIsolated`. `method="loop"` runs that loop.
    """
    captured, _ = captured_by(model, loss_fn, batch, method)
    return norms_of(captured)


def weighted_gradient(
    model: nn.Module, loss_fn: LossFunction, batch: Any, clipping: ClippingRule, *, method: str = "auto"
) -> dict[str, Tensor]:
    """Sum over samples of weight(norm) * gradient, by parameter name: the private sum before noise.

    Guarantee: every sample's part has norm <= clipping.bound, whatever the rule returns; a sample with a
    non-finite gradient adds zero. Parameters that the loss does not reach have zero sums.
    """
    captured, names = captured_by(model, loss_fn, batch, method)
    norms = norms_of(captured)
    captured.zero_samples(~torch.isfinite(norms))
    sums = captured.weighted_sums(safe_weights(clipping, norms))
    return {name: sums.get(name, torch.zeros_like(p)).to(p.dtype) for name, p in names.items()}


def captured_by(
    model: nn.Module, loss_fn: LossFunction, batch: Any, method: str
) -> tuple[Captured | Rows, dict[str, nn.Parameter]]:
    if method not in ("auto", "loop"):
        raise ValueError(f"method {method!r} is unknown. Known: 'auto', 'loop'.")
    parameters = trainable(model)
    refuse_batch_norm(model)
    with torch.enable_grad():
        losses = vector(loss_fn(model, batch))
    names = {id(p): name for name, p in parameters.items()}
    graph, n = trace([losses], names), len(losses)
    ones = [torch.ones_like(losses)]
    if n == 1 and method == "auto":
        return single(graph, losses, ones), parameters
    errors: list[Exception] = []
    for reading in Batch.readings(batch, n):
        forward = Forward(model, names, lambda tree: [vector(loss_fn(model, tree))], reading)
        try:
            if method == "loop":
                return loops.loop(forward, graph, [losses], ones, 1.0), parameters
            plan = find_plan(graph, forward)
            prove(plan, forward, ones, 1.0)
            return capture(graph, plan, [losses], ones, n), parameters
        except CannotAssign as reason:
            announce(model, reason)
            return loops.loop(forward, graph, [losses], ones, 1.0), parameters
        except (NotIsolated, IndexError, ValueError, RuntimeError) as error:
            if isinstance(error, PrivacyError) and not isinstance(error, NotIsolated):
                raise
            errors.append(error)
    raise next((e for e in errors if isinstance(e, NotIsolated)), errors[0])


def single(graph, losses: Tensor, ones: list[Tensor]) -> Rows:  # type: ignore[no-untyped-def]
    found, _ = capture_single(graph, [losses], ones)
    return Rows({name: grad.unsqueeze(0) for name, grad in found.items()}, 1)


def norms_of(captured: Captured | Rows) -> Tensor:
    squared = captured.norms_squared
    return torch.zeros(captured.num_samples) if squared is None else squared.sqrt()


def vector(losses: Tensor) -> Tensor:
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        given = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"loss_fn returned {given}; it must return one loss per sample, a tensor of shape [n]. Use "
            "reduction='none' and reduce every dimension but the batch's."
        )
    return losses
