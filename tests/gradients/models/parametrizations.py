"""Weights that are computed from parameters by torch's own tools."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from tests.gradients.table import Call, rows

rows(
    "weight_norm",
    lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 3)),
        nn.Tanh(),
        parametrizations.weight_norm(nn.Linear(3, 2)),
    ),
    (5, 4),
)
rows("weight_norm_conv", lambda: parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), (4, 3, 5, 5))
rows(
    "weight_norm_twice",
    lambda: Call(
        lambda m, x: m.layer(m.layer(x).tanh()),
        layer=parametrizations.weight_norm(nn.Linear(4, 4)),
    ),
    (5, 3, 4),
)
rows("orthogonal", lambda: parametrizations.orthogonal(nn.Linear(4, 4)), (5, 4))
rows("spectral_norm", lambda: parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), (5, 4))
rows(
    "spectral_norm_conv",
    lambda: parametrizations.spectral_norm(nn.Conv1d(3, 4, 2)).eval(),
    (5, 3, 6),
)


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(4, 3))


rows("weight_norm_by_hook", old_weight_norm, (5, 3, 4))
rows("spectral_norm_by_hook", lambda: nn.utils.spectral_norm(nn.Linear(4, 3)).eval(), (5, 3, 4))
rows(
    "pruned",
    lambda: prune.l1_unstructured(nn.Linear(4, 3), "weight", amount=0.4),
    (5, 3, 4),
)


class Buffered(nn.Module):
    """Buffers that enter the function: an offset, and a mask of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("mask", torch.ones(3, 4).tril())

    def forward(self, x):
        weight = self.layer.weight * self.mask
        return nn.functional.linear(x - self.mean, weight, self.layer.bias)


rows("buffers", Buffered, (5, 3, 4))
