"""Layers with one row a record: their output gradients are scaled where they lie, if nobody else
can see them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import psac
from psac.gradients import ClippedSum, Evaluator
from psac.gradients.contributions import memory
from psac.gradients.contributions.weights import Weights
from tests import oracles
from tests.gradients.test_clipped_sums import close, data, expected, loss, network

HARD = psac.Abadi(bound=0.1)  # weights far from one


def sums_of(model: nn.Module, batch, clipping=HARD, loss=loss) -> dict[str, Tensor]:
    total = ClippedSum(Evaluator(model), clipping)
    total.add(loss, batch)
    total.discard()
    total.add(loss, batch)  # nothing is compared with plain autograd any more
    return total.collect()


class Thrice(nn.Module):
    """Three layers that get one and the same output gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.third = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.other(x.tanh()) + self.third(x * x)


def test_a_gradient_that_several_layers_have_is_scaled_for_each():
    torch.manual_seed(0)
    model, batch = Thrice(), data()
    close(sums_of(model, batch), expected(model, batch, HARD))


def test_a_gradient_whose_entries_share_their_memory():
    model, (x, _) = network(), data()

    def total(model, x):
        return model(x).sum()

    gradients = oracles.gradients(model, total, x)
    weights = HARD.weights(oracles.norms(gradients)).tolist()
    close(sums_of(model, x, loss=total), oracles.weighted_sum(gradients, weights))


def test_a_bias_may_have_another_rule_than_its_weight():
    rules = {"*.weight": psac.Abadi(bound=0.1), "*.bias": psac.Abadi(bound=0.01)}
    model, batch = network(), data()
    gradients, truth = oracles.gradients(model, loss, batch), {}
    for pattern, rule in rules.items():
        parts = [{k: g for k, g in one.items() if k.endswith(pattern[2:])} for one in gradients]
        truth |= oracles.weighted_sum(parts, rule.weights(oracles.norms(parts)).tolist())
    close(sums_of(model, batch, rules), truth)


def copies(monkeypatch) -> list[int]:
    """One entry for each product whose rows were scaled beside the originals."""
    made: list[int] = []
    product = Weights.product
    monkeypatch.setattr(Weights, "product", lambda *args: made.append(1) or product(*args))
    return made


def test_gradients_that_nobody_else_sees_are_scaled_where_they_lie(monkeypatch):
    """Else the way would be there for nothing."""
    model, batch = network(), data()
    total = ClippedSum(Evaluator(model), HARD)
    total.add(loss, batch)
    total.discard()
    made = copies(monkeypatch)
    total.add(loss, batch)
    close(total.collect(), expected(model, batch, HARD))
    assert not made


def test_references_are_counted():
    class Holder:
        def __init__(self):
            self.tensor = torch.ones(3, 2)

    def alone(count: int = 1) -> bool:
        return memory.references(holder.tensor) == memory.references_of_attributes(count)

    holder = Holder()
    assert alone()
    holder.other = holder.tensor
    assert not alone()
    assert alone(2)
    for seen in (holder.tensor.t(), holder.tensor.untyped_storage(), holder.tensor.numpy()):
        holder.other = seen
        assert not alone()
        assert not alone(2)
    del holder.other, seen
    assert alone()
    assert memory.references(torch.ones(3).to_sparse()) is None


def test_where_references_cannot_be_counted_gradients_are_copied(monkeypatch):
    monkeypatch.setattr("psac.gradients.contributions.single.references", lambda tensor: None)
    model, batch, made = network(), data(), copies(monkeypatch)
    close(sums_of(model, batch), expected(model, batch, HARD))
    assert made
