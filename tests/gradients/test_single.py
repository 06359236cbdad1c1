"""Layers with one row a sample: their output gradients are scaled where they lie, if nobody else
can see them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import psac
from psac.gradients import memory
from psac.gradients.weights import Weights
from tests.gradients.test_engine import close, data, network, reference

HARD = psac.Abadi(bound=0.1)  # weights far from one


def sums_of(model, x, y, clipping=HARD) -> dict[str, Tensor]:
    with psac.Engine(model, clipping=clipping) as engine:
        for _ in range(3):  # the first two prove the model and the loss, and hold what they repeat
            engine.discard()
            F.cross_entropy(model(x), y).backward()
        return engine.collect()


def gradients_at(model: nn.Sequential, x: Tensor, y: Tensor, keep) -> None:
    """Backward, with `keep` given the output of the first layer before."""
    hidden = model[0](x)
    keep(hidden)
    F.cross_entropy(model[1:](hidden), y).backward()


class Watched(nn.Module):
    """A network whose user looks at gradients inside."""

    def __init__(self, inner: nn.Sequential, keep):
        super().__init__()
        self.inner, self.keep = inner, keep

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner[0](x)
        if hidden.requires_grad:
            self.keep(hidden)
        return self.inner[1:](hidden)


def ways_to_keep(found: list[Tensor]) -> dict:
    def by_view(grad: Tensor) -> None:
        found[:] = [grad[:, :3]]

    def by_array(grad: Tensor) -> None:
        found[:] = [torch.from_numpy(grad.numpy())]

    return {
        "hook": lambda hidden: hidden.register_hook(lambda grad: found.__setitem__(0, grad)),
        "view": lambda hidden: hidden.register_hook(by_view),
        "array": lambda hidden: hidden.register_hook(by_array),
        "retained": lambda hidden: (hidden.retain_grad(), found.__setitem__(0, hidden)),
    }


@pytest.mark.parametrize("way", ["hook", "view", "array", "retained"])
def test_a_gradient_that_the_user_keeps_stays_as_it_is(way):
    model, (x, y) = network(), data()
    expected: list = [None]
    gradients_at(model, x, y, ways_to_keep(expected)[way])
    model.zero_grad()
    found: list = [None]
    given = sums_of(Watched(model, ways_to_keep(found)[way]), x, y)
    for kept in (expected, found):
        kept[0] = kept[0].grad if way == "retained" else kept[0]
    torch.testing.assert_close(found[0], expected[0])
    close(
        {name.removeprefix("inner."): g for name, g in given.items()}, reference(model, x, y, HARD)
    )


class Twice(nn.Module):
    """Three layers that get one and the same output gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.bias = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.other(x.tanh()) + self.bias(x * x)


def test_a_gradient_that_several_layers_have_is_scaled_for_each():
    torch.manual_seed(0)
    model, (x, y) = Twice(), data()
    close(sums_of(model, x, y), reference(model, x, y, HARD))


def test_a_gradient_that_the_user_gives_stays_as_it_is():
    model, (x, _), given = network(), data(), torch.rand(7, 3)
    before = given.clone()
    with psac.Engine(model, clipping=HARD, loss_reduction="sum") as engine:
        for _ in range(2):
            engine.discard()
            model(x).backward(given)
        found = engine.collect()
    torch.testing.assert_close(given, before, rtol=0, atol=0)

    def losses(m, batch):
        return (m(batch[0]) * batch[1]).sum(1)

    close(found, psac.weighted_gradient(model, losses, (x, before), HARD, method="loop"))


def test_a_gradient_whose_entries_share_their_memory():
    model, (x, _) = network(), data()
    with psac.Engine(model, clipping=HARD, loss_reduction="sum") as engine:
        for _ in range(2):
            engine.discard()
            model(x).sum().backward()
        found = engine.collect()
    expected = psac.weighted_gradient(model, lambda m, b: m(b).sum(1), x, HARD, method="loop")
    close(found, expected)


def test_a_bias_may_have_another_rule_than_its_weight():
    rules = {"*.weight": psac.Abadi(bound=0.1), "*.bias": psac.Abadi(bound=0.01)}
    model, (x, y) = network(), data()
    given = sums_of(model, x, y, rules)
    per_sample = [
        sums_of(model, x[n : n + 1], y[n : n + 1], psac.Custom(torch.ones_like, 1e9))
        for n in range(len(x))
    ]
    expected = {}
    for pattern, rule in rules.items():
        names = [name for name in given if name.endswith(pattern[2:])]
        norms = torch.stack([torch.cat([g[k].flatten() for k in names]).norm() for g in per_sample])
        for name in names:
            rows = torch.stack([g[name] for g in per_sample])
            expected[name] = torch.tensordot(rule.weights(norms), rows, 1)
    close(given, expected)


def copies(monkeypatch) -> list[int]:
    """One entry for each product whose rows were scaled beside the originals."""
    made: list[int] = []
    product = Weights.product
    monkeypatch.setattr(Weights, "product", lambda *args: made.append(1) or product(*args))
    return made


def test_gradients_that_nobody_else_sees_are_scaled_where_they_lie(monkeypatch):
    """Else the way would be there for nothing."""
    model, (x, y) = network(), data()
    expected = reference(model, x, y, HARD)
    with psac.Engine(model, clipping=HARD) as engine:
        for _ in range(2):  # with proofs
            F.cross_entropy(model(x), y).backward()
        engine.discard()
        made = copies(monkeypatch)
        F.cross_entropy(model(x), y).backward()
        close(engine.collect(), expected)
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
    monkeypatch.setattr("psac.gradients.single.references", lambda tensor: None)
    model, (x, y), made = network(), data(), copies(monkeypatch)
    close(sums_of(model, x, y), reference(model, x, y, HARD))
    assert made


class Residual(nn.Module):
    """Its input gets the very gradient that its layer gets."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)


def test_the_gradient_of_an_input_is_not_scaled():
    torch.manual_seed(0)
    model, x, y = Residual(), torch.randn(7, 4), torch.randint(4, (7,))
    expected, found = (x.clone().requires_grad_() for _ in range(2))
    F.cross_entropy(model(expected), y).backward()
    model.zero_grad()
    with psac.Engine(model, clipping=HARD):
        with pytest.warns(psac.gradients.errors.UnprotectedGradientWarning):
            F.cross_entropy(model(x.clone().requires_grad_()), y).backward()
        F.cross_entropy(model(found), y).backward()
    torch.testing.assert_close(found.grad, expected.grad)
