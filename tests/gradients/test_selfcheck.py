"""What psac computes is held against plain autograd before it counts; what it missed is noticed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import psac
from psac.gradients import ClippedSum, Evaluator
from psac.gradients.contributions.base import Dense
from psac.gradients.contributions.single import Single
from psac.gradients.isolation import outside
from psac.gradients.rules import RULES
from tests import oracles
from tests.gradients.table import squares
from tests.gradients.test_against_the_loop import hold_to_the_loop


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 2))


def expected_norms(net: nn.Module, x: Tensor) -> Tensor:
    return oracles.norms(oracles.gradients(net, squares, x))


@pytest.mark.parametrize("factor", [1.01, 0.5])
def test_norms_that_are_wrong_by_a_hundredth_are_not_used(monkeypatch, factor):
    true = Single.norms_squared
    monkeypatch.setattr(Single, "norms_squared", lambda *given: factor**2 * true(*given))
    net, x = model(), torch.randn(5, 4)
    with pytest.warns(psac.SlowPathWarning, match="from plain autograd"):
        norms = psac.per_sample_norms(net, squares, x)
    torch.testing.assert_close(norms, expected_norms(net, x))


def test_sums_that_are_wrong_while_norms_are_right_are_not_used(monkeypatch):
    true = Dense.weighted_sum
    monkeypatch.setattr(Dense, "weighted_sum", lambda *given: -true(*given))
    net, x = model(), torch.randn(5, 4)
    total = ClippedSum(Evaluator(net), psac.PSAC())
    with pytest.warns(psac.SlowPathWarning, match="from plain autograd"):
        assert total.add(squares, x).way == "alone"


def test_a_rule_that_mixes_records_is_found_out(monkeypatch):
    """As one that folds the record axis wrongly would."""
    true = RULES[F.linear]

    def mixing(rec, input, weight, bias=None):
        result = true(rec, input, weight, bias)
        return rec.of_records(rec.physical(result).roll(1, 0))

    monkeypatch.setitem(RULES, F.linear, mixing)
    net, x = model(), torch.randn(5, 4)
    with pytest.warns(psac.SlowPathWarning, match="from plain autograd"):
        norms = psac.per_sample_norms(net, squares, x)
    torch.testing.assert_close(norms, expected_norms(net, x))


@pytest.mark.filterwarnings("ignore:.*another loss function:psac.PrivacyWarning")
def test_every_new_computation_is_compared_and_known_ones_are_not(monkeypatch):
    compared = []
    true = Evaluator._compare
    monkeypatch.setattr(Evaluator, "_compare", lambda *given: compared.append(1) or true(*given))
    evaluator, x = Evaluator(model()), torch.randn(5, 4)

    def another(net, x):
        return net[3](net[:3](x) * net[2].weight).sum()

    for loss, so_far in ((squares, 1), (squares, 1), (another, 2), (squares, 2), (another, 2)):
        evaluator(loss, x)
        evaluator(loss, x[:2])
        assert len(compared) == so_far


class Unseen(nn.Module):
    """A weight that is used where torch tells no function mode of it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.weight = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.seen(x).tanh()
        with torch._C.DisableTorchFunction():
            return hidden @ self.weight + x @ self.weight


def test_parameters_that_the_recorder_does_not_see_are_noticed_and_served(monkeypatch):
    monkeypatch.setattr(outside, "INSIGHTS", set())  # which refuses it
    torch.manual_seed(0)
    net = Unseen()
    hold_to_the_loop(net, squares, torch.randn(5, 4), "vmap", 1e-4)
    evaluation = Evaluator(net)(squares, torch.randn(5, 4))
    assert evaluation.rules["weight"] == ("copies",)
    assert evaluation.rules["seen.weight"] == ("linear",)
