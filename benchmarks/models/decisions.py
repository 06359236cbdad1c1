"""Actions, orders and preferences."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

from .batches import Case, classes, dense, numbers


def reinforce() -> Case:
    """REINFORCE: an episode in each record"""

    def loss(model: nn.Module, states: Tensor, rewards: Tensor) -> Tensor:
        law = Categorical(logits=model(states), validate_args=False)
        actions = law.sample()
        returns = rewards.flip(1).cumsum(1).flip(1)
        gain = (law.log_prob(actions) * (returns - returns.mean(1, keepdim=True))).sum(1)
        return -(gain + 0.01 * law.entropy().sum(1)).mean()

    return dense(8, 64, 64, 4, activation=nn.Tanh), loss, (numbers(20, 8), numbers(20))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.policy, self.value = dense(8, 64, 64), nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, states: Tensor) -> tuple[Categorical, Tensor]:
        hidden = torch.tanh(self.trunk(states))
        return Categorical(logits=self.policy(hidden), validate_args=False), self.value(
            hidden
        ).squeeze(-1)


def ppo() -> Case:
    """PPO: a clipped ratio, a model that returns a distribution"""

    def loss(
        model: nn.Module, states: Tensor, actions: Tensor, before: Tensor, gain: Tensor
    ) -> Tensor:
        law, value = model(states)
        ratio = torch.exp(law.log_prob(actions) - before)
        kept = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        return (-kept + 0.5 * (value - gain) ** 2 - 0.01 * law.entropy()).mean()

    batch = (numbers(16, 8), classes(4, 16), -math.log(4) + 0.1 * numbers(16), numbers(16))
    return ActorCritic(), loss, batch


def q_learning() -> Case:
    """Double Q-learning with a frozen target"""
    target = dense(8, 64, 4).requires_grad_(False)

    def loss(
        model: nn.Module, now: Tensor, action: Tensor, reward: Tensor, after: Tensor
    ) -> Tensor:
        value = model(now).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        best = model(after).argmax(-1, keepdim=True)
        wanted = reward + 0.9 * target(after).gather(-1, best).squeeze(-1)
        return F.smooth_l1_loss(value, wanted)

    return dense(8, 64, 4), loss, (numbers(8), classes(4), numbers(), numbers(8))


def ranking() -> Case:
    """Ranking: all pairs of ten documents"""

    def loss(model: nn.Module, documents: Tensor, grades: Tensor) -> Tensor:
        scores = model(documents).squeeze(-1)
        better = (grades.unsqueeze(2) > grades.unsqueeze(1)).float()
        cost = F.softplus(scores.unsqueeze(1) - scores.unsqueeze(2))
        return ((better * cost).sum((1, 2)) / better.sum((1, 2)).clamp(min=1)).mean()

    return dense(24, 64, 64, 1), loss, (numbers(10, 24), classes(4, 10))


def listwise() -> Case:
    """Ranking by a list (ListMLE: sort, logcumsumexp)"""

    def loss(model: nn.Module, documents: Tensor, grades: Tensor) -> Tensor:
        order = grades.argsort(1, descending=True)
        scores = model(documents).squeeze(-1).gather(1, order)
        return (scores.flip(1).logcumsumexp(1).flip(1) - scores).sum(1).mean()

    return dense(24, 64, 64, 1), loss, (numbers(10, 24), numbers(10))


def preference() -> Case:
    """DPO on a pair of answers, with a frozen reference"""
    reference = nn.Sequential(nn.Embedding(200, 32), nn.Linear(32, 200)).requires_grad_(False)
    model = nn.Sequential(nn.Embedding(200, 32), nn.Linear(32, 200))

    def likelihood(network: nn.Module, words: Tensor) -> Tensor:
        logs = network(words[:, :-1]).log_softmax(-1)
        return logs.gather(-1, words[:, 1:].unsqueeze(-1)).sum((1, 2))

    def loss(model: nn.Module, good: Tensor, bad: Tensor) -> Tensor:
        gain = likelihood(model, good) - likelihood(reference, good)
        drop = likelihood(model, bad) - likelihood(reference, bad)
        return -F.logsigmoid(0.1 * (gain - drop)).mean()

    return model, loss, (classes(200, 24), classes(200, 24))


def transport() -> Case:
    """Optimal transport between two sets (Sinkhorn)"""

    def loss(model: nn.Module, x: Tensor, z: Tensor) -> Tensor:
        cost = torch.cdist(model(x), z)
        logs = -cost / 0.5
        for _ in range(5):
            logs = logs - logs.logsumexp(1, keepdim=True)
            logs = logs - logs.logsumexp(2, keepdim=True)
        return (logs.exp() * cost).sum((1, 2)).mean()

    return dense(4, 64, 4), loss, (numbers(12, 4), numbers(12, 4))


MODELS = (
    reinforce, ppo, q_learning, ranking, listwise, preference, transport,
)  # fmt: skip
