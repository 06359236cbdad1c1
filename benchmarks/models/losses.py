"""Loss functions that people bring, on small models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Dirichlet, NegativeBinomial, StudentT, Weibull

from .batches import RECORDS, Case, Loss, classes, dense, numbers
from .convolutions import head, normed


def regression(loss: Loss, outputs: int, y: Tensor) -> Case:
    return dense(32, 128, 128, outputs), loss, (numbers(32), y)


def pictures(loss: Loss, outputs: int, y: Tensor) -> Case:
    model = nn.Sequential(normed(3, 16, 3, 2), normed(16, 32, 3, 2), head(32, outputs))
    return model, loss, (numbers(3, 24, 24), y)


def focal() -> Case:
    """Focal loss"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        plain = F.cross_entropy(model(x), y, reduction="none")
        return ((1 - torch.exp(-plain)) ** 2 * plain).mean()

    return pictures(loss, 10, classes(10))


def hinge() -> Case:
    """Multi-class hinge loss (multi_margin_loss)"""
    return pictures(lambda model, x, y: F.multi_margin_loss(model(x), y), 10, classes(10))


def cosine() -> Case:
    """Cosine distance to a vector of words"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (1 - F.cosine_similarity(model(x), y, dim=-1)).mean()

    return pictures(loss, 48, numbers(48))


def label_smoothing() -> Case:
    """Label smoothing and weights of classes"""
    weight = torch.linspace(0.5, 1.5, 10)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, weight=weight, label_smoothing=0.1)

    return pictures(loss, 10, classes(10))


def mixup() -> Case:
    """Mixup of two pictures of one record"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        share = torch.rand(len(x), 1, 1, 1)
        scores = model(share * x + (1 - share) * x.flip(2))
        return F.cross_entropy(scores, F.one_hot(y, 10) * share.flatten(1) + 0.1)

    return pictures(loss, 10, classes(10))


def multi_label() -> Case:
    """Many labels, with weights of positives"""
    weight = torch.full((20,), 3.0)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x), y, pos_weight=weight)

    return pictures(loss, 20, classes(2, 20).float())


def ordinal() -> Case:
    """Ordinal regression (cumulative logits)"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        above = (y.unsqueeze(-1) > torch.arange(4)).float()
        return F.binary_cross_entropy_with_logits(model(x), above)

    return pictures(loss, 4, classes(5))


def quantile() -> Case:
    """Quantile regression (pinball loss)"""
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        error = y.unsqueeze(-1) - model(x)
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    return regression(loss, 3, numbers())


def gaussian_nll() -> Case:
    """nn.GaussianNLLLoss"""
    criterion = nn.GaussianNLLLoss()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = model(x).chunk(2, -1)
        return criterion(mean.squeeze(-1), y, log_variance.squeeze(-1).exp())

    return regression(loss, 2, numbers())


def student() -> Case:
    """Student's t by torch.distributions"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        freedom, place, scale = model(x).unbind(-1)
        law = StudentT(2 + F.softplus(freedom), place, F.softplus(scale), validate_args=False)
        return -law.log_prob(y).mean()

    return regression(loss, 3, numbers())


def counts() -> Case:
    """Counts: a negative binomial"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        total, logits = model(x).unbind(-1)
        law = NegativeBinomial(F.softplus(total), logits=logits, validate_args=False)
        return -law.log_prob(y.float()).mean()

    return regression(loss, 2, classes(20))


def poisson() -> Case:
    """Poisson regression"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.poisson_nll_loss(model(x).squeeze(-1), y, full=True)

    return regression(loss, 1, classes(20).float())


def huber() -> Case:
    """Huber loss of logarithms"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.huber_loss(model(x).squeeze(-1), torch.log1p(y.abs()))

    return regression(loss, 1, numbers())


def survival_weibull() -> Case:
    """Survival: censored Weibull"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scale, shape = F.softplus(model(x)).add(0.1).unbind(-1)
        law = Weibull(scale, shape, validate_args=False)
        time, seen = y.unbind(-1)
        late = -((time / scale) ** shape)
        return -torch.where(seen > 0, law.log_prob(time), late).mean()

    time = torch.stack([torch.rand(RECORDS) + 0.1, classes(2).float()], -1)
    return regression(loss, 2, time)


def survival_discrete() -> Case:
    """Survival: hazards of twelve months"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        month, seen = y.unbind(-1)
        hazards, months = model(x), torch.arange(12)
        lived = (months < month.unsqueeze(-1)).float()
        died = F.one_hot(month, 12) * seen.unsqueeze(-1)
        logs = died * F.logsigmoid(hazards) + lived * F.logsigmoid(-hazards)
        return -logs.sum(-1).mean()

    return regression(loss, 12, torch.stack([classes(12), classes(2)], -1))


def evidential() -> Case:
    """Evidential classification (Dirichlet)"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        evidence = F.softplus(model(x)) + 1
        law = Dirichlet(evidence, validate_args=False)
        fit = torch.digamma(evidence.sum(-1)) - torch.digamma(
            evidence.gather(-1, y[:, None])
        ).squeeze(-1)
        return (fit - 0.01 * law.entropy()).mean()

    return pictures(loss, 5, classes(5))


MODELS = (
    focal, hinge, cosine, label_smoothing, mixup, multi_label, ordinal, quantile, gaussian_nll,
    student, counts, poisson, huber, survival_weibull, survival_discrete, evidential,
)  # fmt: skip
