"""Ways to train that are about: mixtures, adapters, checkpoints, noise, penalties."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import Block, plain
from .batches import Case, classes, cross_entropy, dense, next_token, numbers, tokens
from .convolutions import conv, head, normed


class Experts(nn.Module):
    """All experts work; a gate weighs them, the best two if `top` is 2."""

    def __init__(self, top: int | None = None, experts: int = 4, width: int = 64) -> None:
        super().__init__()
        self.gate, self.top = nn.Linear(width, experts), top
        self.first = nn.Parameter(torch.randn(experts, width, 128) / width**0.5)
        self.second = nn.Parameter(torch.randn(experts, 128, width) / 128**0.5)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        if self.top is not None:
            best = scores.topk(self.top, -1).indices
            chosen = torch.zeros_like(scores).scatter(-1, best, 1.0)
            scores = scores.masked_fill(chosen == 0, float("-inf"))
        hidden = F.gelu(torch.einsum("btd,edh->bteh", x, self.first))
        out = torch.einsum("bteh,ehd,bte->btd", hidden, self.second, scores.softmax(-1))
        return self.head((x + out).mean(1))


def mixture_of_experts() -> Case:
    """Mixture of experts, all weighted"""
    return Experts(), cross_entropy, (numbers(16, 64), classes(10))


def top_two_experts() -> Case:
    """Mixture of experts, the best two by a mask"""
    return Experts(2), cross_entropy, (numbers(16, 64), classes(10))


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(0.1 * torch.randn(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.dropout(x, 0.1, self.training) @ self.down.T @ self.up.T


class Language(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(500, 128), nn.Linear(128, 500)
        self.blocks = nn.ModuleList(Block(plain) for _ in range(depth))
        for block in self.blocks:
            block.bias = None

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        return block(x)


def lora() -> Case:
    """LoRA on a frozen transformer"""
    model = Language().requires_grad_(False)
    for block in model.blocks:
        block.query, block.out = LoRA(block.query), LoRA(block.out)
    return model, next_token, (tokens(48, 500),)


class Prompted(Language):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.prompt = nn.Parameter(torch.randn(8, 128))

    def forward(self, words: Tensor) -> Tensor:
        x = torch.cat([self.prompt.expand(len(words), -1, -1), self.words(words)], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 8:])


def prompt_tuning() -> Case:
    """Prompt tuning: one parameter of a frozen transformer"""
    return Prompted(), next_token, (tokens(40, 500),)


class Checkpointed(Language):
    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=False)


def checkpointed() -> Case:
    """Gradient checkpointing"""
    return Checkpointed(), next_token, (tokens(48, 500),)


def checkpointed_dropout() -> Case:
    """Gradient checkpointing of convolutions with dropout"""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = (
                normed(3, 16, 3, 2),
                nn.Sequential(normed(16, 32), nn.Dropout2d(0.2)),
            )
            self.last = head(32)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(checkpoint(self.body, self.stem(x), use_reentrant=False))

    return Net(), cross_entropy, (numbers(3, 24, 24), classes(10))


def gumbel() -> Case:
    """A random choice by gumbel_softmax"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        choice = F.gumbel_softmax(model[0](x), tau=0.5, hard=True)
        return F.cross_entropy(model[1](choice * x), y)

    return nn.Sequential(nn.Linear(32, 32), dense(32, 64, 4)), loss, (numbers(32), classes(4))


class StochasticDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = (
            conv(3, 32, 3, 2),
            nn.ModuleList(normed(32, 32) for _ in range(3)),
            head(32),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            kept = (torch.rand(len(x), 1, 1, 1) < 0.8).float()
            x = x + kept * block(x) / 0.8
        return self.head(x)


def stochastic_depth() -> Case:
    """Stochastic depth"""
    return StochasticDepth(), cross_entropy, (numbers(3, 24, 24), classes(10))


def weight_decay_in_loss() -> Case:
    """Penalties of weights inside the loss"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        decay = sum(p.square().sum() for p in model.parameters())
        return F.cross_entropy(model(x), y) + 1e-4 * decay

    return dense(784, 512, 10), loss, (numbers(784), classes(10))


def proximal() -> Case:
    """FedProx: distance to public weights inside the loss"""
    model = dense(784, 512, 10)
    start = [p.detach().clone() for p in copy.deepcopy(model).parameters()]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        pairs = zip(model.parameters(), start, strict=True)
        return F.cross_entropy(model(x), y) + 0.05 * sum((p - s).square().sum() for p, s in pairs)

    return model, loss, (numbers(784), classes(10))


class Bayesian(nn.Module):
    """Weights drawn anew in each step."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))
        self.log_std = nn.Parameter(torch.full((outputs, inputs), -4.0))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mean + self.log_std.exp() * torch.randn_like(self.mean))


def bayesian() -> Case:
    """Bayes by backprop (weights are drawn)"""
    model = nn.Sequential(Bayesian(256, 512), nn.ReLU(), Bayesian(512, 10))
    return model, cross_entropy, (numbers(256), classes(10))


MODELS = (
    mixture_of_experts, top_two_experts, lora, prompt_tuning, checkpointed, checkpointed_dropout,
    gumbel, stochastic_depth, weight_decay_in_loss, proximal, bayesian,
)  # fmt: skip
