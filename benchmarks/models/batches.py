"""Records of random numbers, and the losses that most models share.

A loss function works on a batch of one record, as psac calls it, and on a whole batch, as an
ordinary step does: there it is the mean over records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RECORDS = 16

Loss = Callable[..., Tensor]
Case = tuple[nn.Module, Loss, Any]  # model, loss, batch


def numbers(*shape: int) -> Tensor:
    """Normal ones."""
    return torch.randn(RECORDS, *shape)


def tokens(length: int, vocabulary: int) -> Tensor:
    """None of them 0, which is the padding."""
    return torch.randint(1, vocabulary, (RECORDS, length))


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(count, (RECORDS, *shape))


def lengths(least: int, most: int) -> Tensor:
    return torch.randint(least, most + 1, (RECORDS,))


def padding(length: int) -> Tensor:
    """[records, length]: true for words, of which each record has another number."""
    return torch.arange(length) < lengths(length // 2, length)[:, None]


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


def reconstruction(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x), x)


def next_token(model: nn.Module, words: Tensor) -> Tensor:
    """The mean over tokens of a language model."""
    scores = model(words[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())


def dense(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])
