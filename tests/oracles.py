"""Slow, obvious versions of what the library computes.

Plain Python loops and plain autograd, no code of psac.

A record is taken out of a batch, and its gradient is what `torch.autograd.grad` says for its own
loss. That is the truth which every fast path is measured by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def gradients(model: nn.Module, loss: Callable[..., Tensor], batch: Any) -> list[dict[str, Tensor]]:
    """One dictionary name -> gradient per record, for a loss function as `private.step` takes it.

    A tuple is given to the function by position, a dictionary by name.
    """

    def of_one(model: nn.Module, record: Any) -> Tensor:
        if isinstance(record, dict):
            return loss(model, **record)
        return loss(model, *record) if isinstance(record, tuple) else loss(model, record)

    return loop_gradients(model, of_one, batch, take_first, num_records(batch))


def loop_gradients(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    take: Callable[[Any, int], Any],
    num_samples: int,
) -> list[dict[str, Tensor]]:
    """One dictionary name -> gradient per sample; parameters that are not reached have zeros."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = []
    for i in range(num_samples):
        loss = loss_fn(model, take(batch, i)).sum()
        grads = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        pairs = zip(named, grads, strict=True)
        found.append({name: g.detach().to_dense() for name, g in pairs})
    return found


def norms(gradients: list[dict[str, Tensor]]) -> Tensor:
    """The norm of each sample's whole gradient, in float64."""
    return torch.tensor(
        [
            sum(float(g.abs().double().square().sum()) for g in sample.values()) ** 0.5
            for sample in gradients
        ],
        dtype=torch.float64,
    )


def psac_weight(norm: float, r: float = 0.1, bound: float = 1.0) -> float:
    """The paper's weight as it is printed there.

    Kept a millionth below what would reach the bound.
    """
    return min(bound / (norm + r / (norm + r)), bound * (1 - 1e-6) / max(norm, 1e-12))


def weighted_sum(gradients: list[dict[str, Tensor]], weights: list[float]) -> dict[str, Tensor]:
    """sum over i of weights[i] * gradients[i], in float64 (complex parameters: complex128)."""
    total: dict[str, Tensor] = {}
    for sample, weight in zip(gradients, weights, strict=True):
        for name, g in sample.items():
            wide = g.to(torch.promote_types(g.dtype, torch.float64))
            total[name] = total.get(name, 0) + weight * wide
    return total


def take_first(batch: Any, i: int) -> Any:
    """Sample i where every tensor has the samples in its first dimension."""
    if isinstance(batch, Tensor):
        return batch[i : i + 1]
    if isinstance(batch, dict):
        return {key: take_first(value, i) for key, value in batch.items()}
    return type(batch)(take_first(value, i) for value in batch)


def num_records(batch: Any) -> int:
    """How many samples the first tensor of the batch has."""
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return len(batch)
