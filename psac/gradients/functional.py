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

from ..clipping import Abadi, ClippingRule
from . import trees
from .clipped import ClippedSum
from .evaluate import LossFunction
from .evaluator import Evaluator


def per_sample_norms(
    model: nn.Module, loss: LossFunction, batch: Any, *, batched: bool = False
) -> Tensor:
    """The gradient norm of each record's own loss over all trainable parameters, shape [n].

    Guarantee: equal to a loop over records by plain autograd, up to rounding.
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
    """Sum over records of weight(norm) * gradient, by parameter name: the private sum before noise.

    Guarantee: every record's part has norm <= clipping.bound, whatever the rule returns; a record
    with a non-finite gradient adds zero. Parameters that the loss does not reach have zero sums.
    Sums are of float32 at least, for half-precision parameters too: rounded to those, they would
    move by more than the bound.
    """
    total = ClippedSum(Evaluator(model), clipping)
    if trees.num_records(batch):
        total.add(loss, batch, batched=batched)
    return total.collect()
