"""The engine as plain functions, without noise: for tests, analysis and research.

The function is the one that `private.step` takes: `loss(model, *batch)` is given a batch of one
record and returns its loss.

>>> import torch, psac
>>> model = torch.nn.Linear(2, 1, bias=False)
>>> batch = (torch.tensor([[3.0, 4.0], [0.0, 1.0]]),)
>>> per_sample_norms(model, lambda model, x: model(x).sum(), batch)
tensor([5., 1.])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from psac.clipping.rules import Abadi, ClippingRule
from psac.gradients import trees
from psac.gradients.clipped import ClippedSum
from psac.gradients.evaluator import Evaluator
from psac.gradients.trees import LossFunction


def per_sample_norms(
    model: nn.Module, loss: LossFunction, batch: Any, *, batched: bool = False
) -> Tensor:
    """The gradient norm of each record's own loss, over all trainable parameters.

    They equal a loop over records by plain autograd, up to rounding. They are NOT private.

    Args:
        model: Any model.
        loss: The function that `private.step` takes: a batch of one record -> its loss.
        batch: Tensors with the records along their first axis, in a tuple, list or mapping.
        batched: As for `private.step`.

    Returns:
        The norms, shape [n], in float32 at least.

    Raises:
        NotIsolated: The function or the model would let one record change another.

    Examples:
        >>> import torch, psac
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> batch = (torch.tensor([[3.0, 4.0], [0.0, 1.0]]),)
        >>> psac.per_sample_norms(model, lambda model, x: model(x).sum(), batch)
        tensor([5., 1.])
    """
    if not trees.num_records(batch):
        return torch.zeros(0)
    return ClippedSum(Evaluator(model), Abadi(bound=1.0)).add(loss, batch, batched=batched).norms


def weighted_gradient(
    model: nn.Module,
    loss: LossFunction,
    batch: Any,
    clipping: ClippingRule | Mapping[str, ClippingRule],
    *,
    batched: bool = False,
) -> dict[str, Tensor]:
    """The sum over records of weight(norm) * gradient: the private sum before its noise.

    The part of each record has norm <= clipping.bound, whatever the rule returns. A record with a
    non-finite gradient adds zero.

    Args:
        model: Any model.
        loss: The function that `private.step` takes: a batch of one record -> its loss.
        batch: Tensors with the records along their first axis, in a tuple, list or mapping.
        clipping: A rule, or a mapping from patterns of parameter names to rules.
        batched: As for `private.step`.

    Returns:
        The sums by parameter name; zeros for parameters that the loss does not reach. They are of
        float32 at least, also for half-precision parameters: rounded to those, they would move by
        more than the bound.

    Raises:
        NotIsolated: The function or the model would let one record change another.

    Examples:
        >>> import torch, psac
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> batch = (torch.tensor([[3.0, 4.0], [0.0, 1.0]]),)
        >>> rule = psac.Abadi(bound=1.0)
        >>> psac.weighted_gradient(model, lambda model, x: model(x).sum(), batch, rule)["weight"]
        tensor([[0.6000, 1.8000]])
    """
    total = ClippedSum(Evaluator(model), clipping)
    if trees.num_records(batch):
        total.add(loss, batch, batched=batched)
    return total.collect()
