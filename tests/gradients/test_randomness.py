"""Layers that draw random numbers: each record has its own, and the fast way serves them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import psac
from psac.gradients import ClippedSum, Evaluator
from tests.gradients.table import Raw, uneven

ONES = psac.Custom(torch.ones_like, bound=1e9)


def raw(function, **shapes):
    return Raw(function, shapes)


def layers(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), *between, nn.Linear(8, 3))


def convolutions(between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(3, 4, 3), between, nn.Conv1d(4, 2, 1))


def attended(m, x):
    return F.scaled_dot_product_attention(x @ m.q, x @ m.k, x, dropout_p=0.3)


MODELS = {
    "dropout": lambda: layers(nn.Dropout(0.5)),
    "dropout_in_place": lambda: layers(nn.Dropout(0.5, inplace=True)),
    "dropout_of_channels": lambda: convolutions(nn.Dropout1d(0.5)),
    "alpha_dropout": lambda: layers(nn.AlphaDropout(0.5)),
    "alpha_dropout_of_channels": lambda: convolutions(nn.FeatureAlphaDropout(0.5)),
    "lstm": lambda: nn.LSTM(8, 3, 2, dropout=0.5, batch_first=True),
    "gru": lambda: nn.GRU(8, 3, 3, dropout=0.5, bidirectional=True),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.3, batch_first=True),
    "decoder": lambda: raw_decoder(),
    "attention": lambda: raw(attended, q=(8, 8), k=(8, 8)),
    "noise": lambda: raw(lambda m, x: (x + torch.randn_like(x)) @ m.w, w=(8, 3)),
    "noise_of_a_shape": lambda: raw(lambda m, x: (x + torch.rand(1, 3, 8)) @ m.w, w=(8, 3)),
    "noise_on_weights": lambda: raw(lambda m, x: x @ (m.w + torch.randn(8, 3)), w=(8, 3)),
    "mask": lambda: raw(lambda m, x: torch.bernoulli(x.sigmoid()) @ m.w, w=(8, 3)),
    "mask_by_method": lambda: raw(lambda m, x: x.sigmoid().bernoulli() @ m.w, w=(8, 3)),
    "noise_by_the_record": lambda: raw(lambda m, x: torch.normal(x, x.exp()) @ m.w, w=(8, 3)),
    "counts": lambda: raw(lambda m, x: torch.poisson(x.exp()) @ m.w, w=(8, 3)),
    "one_number": lambda: raw(
        lambda m, x: (x @ m.w) * torch.randint(1, 9, (1,)) * torch.rand(1) + torch.randn(1),
        w=(8, 3),
    ),
    "numbers_drawn_in_place": lambda: raw(
        lambda m, x: (x + torch.empty(1, 3, 8).normal_()) @ m.w * torch.zeros(3).uniform_(),
        w=(8, 3),
    ),
    "gamma": lambda: raw(lambda m, x: torch._standard_gamma((x @ m.w).exp()), w=(8, 3)),
    "dirichlet": lambda: raw(lambda m, x: torch._sample_dirichlet(x.exp()) @ m.w, w=(8, 3)),
    "beta": lambda: raw(
        lambda m, x: torch.distributions.Beta((x @ m.w).exp(), torch.ones(3)).rsample(), w=(8, 3)
    ),
    "binomial": lambda: raw(
        lambda m, x: torch.binomial(torch.full_like(x, 50), x.sigmoid()) @ m.w, w=(8, 3)
    ),
    "sample": lambda: raw(
        lambda m, x: m.w[torch.multinomial(x[0].exp(), 4)] + m.w[x[0].exp().multinomial(4)],
        w=(8, 3),
    ),
    "choice": lambda: raw(
        lambda m, x: F.gumbel_softmax(x @ m.w, hard=True) @ m.v, w=(8, 3), v=(3,)
    ),
}

OF_WEIGHTS = {
    "noise_like_weights": lambda: raw(
        lambda m, x: x @ (m.w + m.s.exp() * torch.randn_like(input=m.w)), w=(8, 3), s=(8, 3)
    ),
    "numbers_like_weights": lambda: raw(
        lambda m, x: x @ (m.w * torch.rand_like(m.w) * torch.randint_like(m.w, 1, 9)), w=(8, 3)
    ),
    "dropout_of_weights": lambda: raw(lambda m, x: x @ F.dropout(2 * m.w, 0.5), w=(8, 3)),
}


def raw_decoder() -> nn.Module:
    class Decoder(nn.TransformerDecoderLayer):
        def forward(self, x):
            return super().forward(x, x[:, :2])

    return Decoder(8, 2, 12, 0.3, batch_first=True)


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return uneven(model(x))


@pytest.mark.parametrize("name", [*MODELS, *OF_WEIGHTS])
def test_random_layers_are_served_by_the_fast_way(name):
    """Which implies that they agree with plain autograd, on the same draws: psac compares them."""
    torch.manual_seed(0)
    model = {**MODELS, **OF_WEIGHTS}[name]().train()
    sensitive = ClippedSum(Evaluator(model), psac.PSAC()).add(loss, torch.randn(6, 3, 8))
    assert sensitive.way == "vmap"
    assert bool((sensitive.norms > 0).all())


@pytest.mark.parametrize("name", MODELS)
def test_equal_records_have_draws_of_their_own(name):
    torch.manual_seed(0)
    model = MODELS[name]().train()
    x = torch.randn(1, 3, 8).expand(40, 3, 8)
    norms = psac.per_sample_norms(model, loss, x)
    assert len(set(norms.tolist())) > 10


@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_numbers_like_a_weight_are_drawn_once_for_the_batch(name):
    torch.manual_seed(0)
    model, x = OF_WEIGHTS[name]().train(), torch.randn(1, 3, 8).expand(40, 3, 8)
    evaluator = Evaluator(model)
    first, second = evaluator(loss, x), evaluator(loss, x)
    assert len(set(first.losses.tolist())) == 1
    assert not torch.equal(first.losses, second.losses)
    assert "copies" not in str(first.rules)


def test_the_gradient_of_a_record_is_that_of_its_own_mask():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1, bias=False))
    total = ClippedSum(Evaluator(model), ONES)
    norms = total.add(lambda m, x: m(x).sum(), torch.ones(9, 64)).norms
    kept = norms.square() / 4  # entries that are kept are doubled
    torch.testing.assert_close(kept, kept.round())
    assert len(set(kept.tolist())) > 3
    assert float(total.collect()["1.weight"].sum()) == pytest.approx(2 * float(kept.sum()))


def test_what_psac_compares_costs_the_user_no_random_number():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(6, 8)
    evaluator, states = Evaluator(model), []
    for _ in range(2):  # the first call is compared with plain autograd, the second is not
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(3)
        losses = evaluator(loss, x).losses
        states.append((losses.tolist(), torch.rand(3).tolist(), np.random.rand(), random.random()))
    assert states[0] == states[1]
