"""The optimizer of a run and its learning rate.

    constant   lr
    cosine     lr * (1 + cos(pi * progress)) / 2
    linear     lr * (1 - progress)

`progress` is the spent share of the planned steps, from 0 to below 1.  The rate is a function of it
alone, so a schedule has no state.  The optimizers are those of torch: their input is already
private, so everything they compute from it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "sgd": torch.optim.SGD,
}
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
}


def optimizer_for(
    model: nn.Module, name: str, *, learning_rate: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """A new optimizer of the parameters that are not frozen; `momentum` is for sgd only."""
    settings: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    if name == "sgd":
        settings["momentum"] = momentum
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return OPTIMIZERS[name](trained, **settings)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, schedule: str, learning_rate: float, progress: float
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * SCHEDULES[schedule](progress)
