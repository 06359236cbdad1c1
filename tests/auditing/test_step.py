"""The shipped step passes its own audit, and broken ones do not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import psac
from psac.auditing import Canaries

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")

RULES = [
    psac.PSAC(),
    psac.PSAC(bound=0.1),
    psac.AutoS(),
    psac.Abadi(bound=3.0),
    psac.AdaptivePSAC(),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_shipped_step_keeps_its_promise_and_the_attack_is_strong(rule):
    result = psac.audit(clipping=rule, seed=1)
    assert result.promised == pytest.approx(4.377, abs=0.01)  # one Gaussian step
    assert 0.7 * result.promised <= result.bound.epsilon <= result.promised
    assert result.passed
    assert "passed" in str(result)


@pytest.mark.parametrize("physical", [None, 3000])
def test_several_steps_and_physical_batches_keep_the_promise(physical):
    result = psac.audit(noise_multiplier=3.0, steps=4, physical_batch_size=physical, seed=2)
    assert 0.7 * result.promised <= result.bound.epsilon <= result.promised


def test_half_the_noise_is_found(monkeypatch):
    from psac.private import run as shipped

    whole = shipped.add_noise_
    monkeypatch.setattr(
        shipped, "add_noise_", lambda sums, std, **rest: whole(sums, std=std / 2, **rest)
    )
    result = psac.audit(seed=1)
    assert not result.passed
    assert result.bound.epsilon > 1.5 * result.promised
    assert "FAILED" in str(result)


def test_a_rule_that_breaks_its_bound_is_held_to_it_by_the_engine():
    greedy = psac.Custom(lambda norms: torch.full_like(norms, 1e9), bound=1.0)
    assert psac.audit(clipping=greedy, seed=1).passed


def test_no_clipping_is_found(monkeypatch):
    monkeypatch.setattr(
        "psac.gradients.clipped.safe_weights", lambda rule, norms: torch.full_like(norms, 1e-4)
    )
    assert not psac.audit(seed=1).passed


class Lines(nn.Module):
    """Logistic regression with as many features as there are canaries, and some for the rest."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, 2)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def planted(canaries: int) -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(1000, canaries + 5)
    x[:, -5:] = torch.randn(1000, 5, generator=generator)
    records = 10 * torch.eye(canaries, canaries + 5)
    labels = torch.ones(canaries, dtype=torch.long)
    return TensorDataset(x, (x[:, -1] > 0).long()), TensorDataset(records, labels)


def shown(canaries: Canaries, model: nn.Module, records: TensorDataset) -> psac.auditing.Bound:
    x, y = records.tensors
    with torch.no_grad():
        scores = -F.cross_entropy(model(x), y, reduction="none")
    return canaries.lower_bound(scores, delta=1e-5)


def test_canaries_in_a_real_run_stay_below_its_epsilon():
    data, records = planted(400)
    canaries = Canaries(data, records, seed=3)
    model = Lines(405)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = psac.make_private(
        model,
        optimizer,
        canaries.dataset,
        batch_size=200,
        epochs=3,
        epsilon=3.0,
        delta=1e-5,
        seed=3,
    )
    for _ in range(3):
        for batch in private.loader:
            private.step(loss, batch)
    bound = shown(canaries, model, records)
    assert 0.1 < bound.epsilon <= private.epsilon()


def test_canaries_in_an_ordinary_run_are_found_out():
    data, records = planted(400)
    canaries = Canaries(data, records, seed=3)
    model = Lines(405)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, y in torch.utils.data.DataLoader(canaries.dataset, batch_size=200, shuffle=True):
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
    assert shown(canaries, model, records).epsilon > 3.0


def test_about_half_of_the_canaries_are_in_and_only_those():
    data, records = planted(400)
    canaries = Canaries(data, records)
    members = int(canaries.members.sum())
    assert 140 < members < 260
    assert len(canaries.dataset) == 1000 + members
    assert len({bytes(Canaries(data, records).members) for _ in range(5)}) == 5


@pytest.mark.parametrize("rule", [psac.PSAC(bound=0.1), psac.Abadi(bound=3.0), psac.AdaptivePSAC()])
def test_a_sampled_run_keeps_its_promise_and_shows_part_of_it(rule):
    plan = {"noise_multiplier": 1.0, "steps": 8, "sampling_rate": 0.5, "clipping": rule}
    result = psac.audit(**plan, seed=1)
    assert result.bound.method == "clopper_pearson"
    assert 0.2 * result.promised < result.bound.epsilon <= result.promised


def test_a_sampled_run_with_too_little_noise_is_found_out(monkeypatch):
    honest = psac.private.run.add_noise_
    monkeypatch.setattr(
        "psac.private.run.add_noise_",
        lambda tensors, *, std, **others: honest(tensors, std=std / 8, **others),
    )
    plan = {"noise_multiplier": 4.0, "steps": 4, "sampling_rate": 0.5}
    assert not psac.audit(**plan, seed=1).passed


def test_a_sampling_rate_above_one_is_refused():
    with pytest.raises(ValueError, match=r"sampling_rate is 1.5: allowed is \(0, 1\]"):
        psac.audit(sampling_rate=1.5)
