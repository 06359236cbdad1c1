"""A small model, small data, and a private run of them, for the tests of `psac.make_private`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import psac


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def records(n: int = 40) -> TensorDataset:
    """Inputs, labels, and the numbers of the records."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator)
    return TensorDataset(x, torch.randint(3, (n,), generator=generator), torch.arange(n))


def sgd(model: nn.Module, **settings: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, **settings)


def private_run(
    model: Any = None, optimizer: Any = None, data: Any = None, **settings: Any
) -> psac.Private:
    """Five steps an epoch, of 8 expected records, without noise."""
    model = network() if model is None else model
    settings = {"batch_size": 8, "epochs": 2, "noise_multiplier": 0.0, "seed": 0} | settings
    return psac.make_private(
        model, optimizer or sgd(model), records() if data is None else data, **settings
    )


def loss(model: nn.Module, x: Tensor, y: Tensor, number: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def train(private: psac.Private, epochs: int = 1, loss: Any = loss) -> list[list[int]]:
    """The loop that everybody writes; returns who was in each physical batch."""
    seen = []
    for _ in range(epochs):
        for batch in private.loader:
            private.step(loss, batch)
            seen.append(batch[-1].tolist())
    return seen


def trained(**settings: Any) -> psac.Private:
    private = private_run(**settings)
    train(private)
    return private


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])
