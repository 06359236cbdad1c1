"""Code as people write it: tensors filled in place, batches in containers, old functions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Beta

from .batches import Case, classes, cross_entropy, dense, numbers, padding, tokens
from .convolutions import head, normed


class Filled(nn.Module):
    """The decoder of a well-known tutorial: outputs are put into a tensor of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(200, 32), nn.GRUCell(32, 64)
        self.head = nn.Linear(64, 200)

    def forward(self, words: Tensor) -> Tensor:
        outputs = torch.zeros(*words.shape, 200)
        state = torch.zeros(len(words), 64)
        for k in range(words.shape[1]):
            state = self.cell(self.words(words[:, k]), state)
            outputs[:, k] = self.head(state)
        return outputs


def filled_outputs() -> Case:
    """Outputs written into torch.zeros, step by step"""

    def loss(model: nn.Module, words: Tensor) -> Tensor:
        return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    return Filled(), loss, (tokens(12, 200),)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = dense(64, 128, 10)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.empty(x.shape).normal_(0, 0.1)
        kept = torch.empty(x.shape).uniform_() < 0.9
        return self.body((x + noise) * kept)


def noise_in_place() -> Case:
    """Noise by torch.empty(...).normal_()"""
    return Noisy(), cross_entropy, (numbers(64), classes(10))


def mixup_beta() -> Case:
    """Mixup with a share from a Beta distribution"""

    def loss(model: nn.Module, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        share = Beta(0.4, 0.4).sample((len(x), 1, 1, 1))
        return F.cross_entropy(model(share * x + (1 - share) * z), y)

    model = nn.Sequential(normed(3, 16, 3, 2), normed(16, 32, 3, 2), head(32))
    return model, loss, (numbers(3, 24, 24), numbers(3, 24, 24), classes(10))


def hot_by_scatter() -> Case:
    """One-hot labels by scatter_ into zeros"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        hot = torch.zeros(len(y), 10).scatter_(1, y.unsqueeze(1), 1.0)
        return -(hot * model(x).log_softmax(-1)).sum(1).mean()

    return dense(64, 128, 10), loss, (numbers(64), classes(10))


class OldSwish(torch.autograd.Function):
    """Without setup_context, as functions were written before torch 2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grad * (gate + x * gate * (1 - gate))


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return OldSwish.apply(x)


def old_function() -> Case:
    """An autograd.Function without setup_context"""
    model = nn.Sequential(normed(3, 16, 3, 2), Swish(), normed(16, 32, 3, 2), Swish(), head(32))
    return model, cross_entropy, (numbers(3, 24, 24), classes(10))


class Mish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tanh(F.softplus(x))


def scripted() -> Case:
    """An activation by torch.jit.script"""

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own: it wants torch.compile
        mish = torch.jit.script(Mish())
    model = nn.Sequential(nn.Linear(64, 128), mish, nn.Linear(128, 10))
    return model, cross_entropy, (numbers(64), classes(10))


@dataclass
class Document:
    words: Tensor
    mask: Tensor
    label: Tensor


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(300, 64), dense(64, 64, 3)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        rows = self.table(words) * mask.unsqueeze(-1)
        return self.head(rows.sum(1) / mask.sum(1, keepdim=True))


def dataclass_batch() -> Case:
    """A batch that is a dataclass"""

    def loss(model: nn.Module, document: Document) -> Tensor:
        return F.cross_entropy(model(document.words, document.mask), document.label)

    return Words(), loss, Document(tokens(24, 300), padding(24), classes(3))


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def nested_batch() -> Case:
    """A batch of dicts, lists and named tuples"""
    model = dense(24, 64, 3)

    def loss(model: nn.Module, inputs: dict[str, Any], target: list[Tensor]) -> Tensor:
        x = torch.cat([inputs["pair"].left, inputs["pair"].right, *inputs["more"]], -1)
        return F.cross_entropy(model(x), target[0])

    pair = Pair(numbers(8), numbers(8))
    return model, loss, {
        "inputs": {"pair": pair, "more": [numbers(4), numbers(4)]}, "target": [classes(3)],
    }  # fmt: skip


def windows(x: Tensor, size: int) -> Iterator[Tensor]:
    for start in range(0, x.shape[1] - size + 1, size):
        yield x[:, start : start + size]


def generator_of_windows() -> Case:
    """A loss summed over windows in a Python loop"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        total = 0.0
        for k, window in enumerate(windows(x, 16)):
            total += (k + 1) * F.cross_entropy(model(window), y)
        return total / 4

    return dense(16, 64, 5), loss, (numbers(64), classes(5))


class Positions(nn.Module):
    """Sines in a buffer, cut to length; masks made in the forward."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(64)[:, None] / 10000 ** (torch.arange(0, 32, 2) / 32)
        table = torch.zeros(64, 32)
        table[:, ::2], table[:, 1::2] = angles.sin(), angles.cos()
        self.register_buffer("table", table.unsqueeze(0))
        self.words = nn.Embedding(300, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(32, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) * 32**0.5 + self.table[:, : words.size(1)]
        ahead = nn.Transformer.generate_square_subsequent_mask(words.size(1))
        return self.head(self.body(x, mask=ahead, src_key_padding_mask=(words == 0).float())[:, -1])


def positions_in_a_buffer() -> Case:
    """Sinusoidal positions, masks made in the forward"""
    return Positions(), cross_entropy, (tokens(24, 300), classes(3))


MODELS = (
    filled_outputs, noise_in_place, mixup_beta, hot_by_scatter, old_function, scripted,
    dataclass_batch, nested_batch, generator_of_windows, positions_in_a_buffer,
)  # fmt: skip
