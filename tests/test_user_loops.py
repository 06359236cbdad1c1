"""Habits of users' own loops: Hugging Face data sets, loss scaling, what mixes a batch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import psac

pytestmark = pytest.mark.filterwarnings("ignore:delta=")
RUN = {"batch_size": 16, "noise_multiplier": 1.0, "delta": 1e-3}


def small_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.slow
def test_a_data_set_of_the_datasets_library_trains_as_its_tensors_do():
    datasets = pytest.importorskip("datasets")
    torch.manual_seed(1)
    inputs, labels = torch.randn(64, 4), torch.randint(3, (64,))
    columns = {"inputs": inputs.tolist(), "labels": labels.tolist()}
    ends = []
    for data in (
        datasets.Dataset.from_dict(columns).with_format("torch"),
        [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)],
    ):
        model, optimizer = small_model()
        with pytest.warns(UserWarning, match="seed"):
            private = psac.make_private(model, optimizer, data, steps=4, seed=3, **RUN)
        for batch in private.loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch["inputs"]), batch["labels"]).backward()
            optimizer.step()
        ends.append(model.weight.detach())
    assert torch.equal(*ends)


def test_a_gradient_scaler_is_refused_before_anything_is_released():
    """It would divide the private gradient, noise and all, by a scale that was clipped away."""
    model, optimizer = small_model()
    before = model.weight.clone()
    data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
    scaler = torch.amp.GradScaler("cpu")
    private = psac.make_private(model, optimizer, data, steps=4, **RUN)
    inputs, labels = next(iter(private.loader))
    scaler.scale(F.cross_entropy(model(inputs), labels)).backward()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)
    assert private.step == private.ledger.steps == 0
    assert torch.equal(model.weight, before)


def train(step, **settings) -> psac.Private:
    """Two steps of a loop whose loss is `step(model, inputs, labels)`."""
    model, optimizer = small_model()
    torch.manual_seed(1)
    data = TensorDataset(torch.rand(64, 4) + 0.5, torch.arange(64) % 3)
    private = psac.make_private(model, optimizer, data, steps=2, **RUN, **settings)
    for inputs, labels in private.loader:
        optimizer.zero_grad()
        step(model, inputs, labels).backward()
        optimizer.step()
    return private


def mixup(model, x, y):
    other = torch.randperm(len(x))
    out = model(0.6 * x + 0.4 * x[other])
    return 0.6 * F.cross_entropy(out, y) + 0.4 * F.cross_entropy(out, y[other])


def weights_from_the_batch(model, x, y):
    weights = 1 / torch.bincount(y, minlength=3).clamp(min=1).float()
    return F.cross_entropy(model(x), y, weight=weights, reduction="none").mean()


def pairs(model, x, y):
    order = (y - y.flip(0)).sign()
    return F.softplus(-(model(x) - model(x.flip(0)))[:, 0] * order).mean()


def standardised_target(model, x, y):
    target = (x[:, 0] - x[:, 0].mean()) / x[:, 0].std()
    return (model(x)[:, 0] - target).square().mean()


def over_positives(model, x, y):
    return F.cross_entropy(model(x), y, reduction="sum") / (1 + (y > 0).float().sum())


def over_counted_positives(model, x, y):
    return F.cross_entropy(model(x), y, reduction="sum") / (1 + (y > 0).sum().item())


def written_over(model, x, y):
    x -= x.mean(0)
    return F.cross_entropy(model(x), y)


kept = []


def with_the_last_batch(model, x, y):
    last = kept[-1] if kept else torch.zeros(1, 4)
    kept.append(x)
    return F.cross_entropy(model(x + 0.1 * last[0]), y)


MIXING = {
    "mixup": mixup,
    "inputs normalised by the batch": lambda model, x, y: F.cross_entropy(
        model((x - x.mean(0)) / x.std(0)), y
    ),
    "inputs written over": written_over,
    "class weights of the batch": weights_from_the_batch,
    "a target normalised by the batch": standardised_target,
    "pairs": pairs,
    "over positives": over_positives,
    "over positives that were counted": over_counted_positives,
    "with the last batch": with_the_last_batch,
}


@pytest.mark.parametrize("name", MIXING)
def test_a_loop_that_mixes_the_batch_of_the_loader_is_refused(name):
    kept.clear()
    with pytest.raises(psac.NotIsolated):
        train(MIXING[name], loss_reduction="sum" if "over positives" in name else "mean")


backbone = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).eval()


def augmented(model, x, y):
    x = torch.where(torch.rand(len(x), 1) < 0.5, x.flip(-1), x.view(x.size(0), -1))
    out = model(x + 0.1 * torch.randn_like(x))
    print(f"{(out.argmax(1) == y).float().mean().item():.2f}")
    return F.cross_entropy(out, y)


def two_views(model, x, y):
    first, second = (model(F.dropout(x, 0.2)) for _ in range(2))
    return F.cross_entropy(first, y) + (first - second.detach()).square().sum(1).mean()


def trimmed(model, x, y):
    longest = (x > 0).sum(1).max().item()
    return F.cross_entropy(model(x[:, :longest]), y)


ISOLATED = {
    "augmented": augmented,
    "two views": two_views,
    "features of a fixed network": lambda model, x, y: F.cross_entropy(
        model(backbone(x).detach()), y
    ),
    "one-hot labels": lambda model, x, y: (model(x) - F.one_hot(y)).square().sum(1).mean(),
    "its own input": lambda model, x, y: F.mse_loss(model(x), x[:, :3]),
    "trimmed to the longest": trimmed,
    "a copy": lambda model, x, y: F.cross_entropy(model(copy.deepcopy(x)), y),
}


@pytest.mark.parametrize("sampling", [psac.Poisson(), psac.FixedSize()])
@pytest.mark.parametrize("name", ISOLATED)
def test_a_loop_that_keeps_samples_apart_trains(name, sampling):
    backbone.requires_grad_(False)
    assert train(ISOLATED[name], sampling=sampling).step == 2


def test_batches_are_made_of_ordinary_tensors_in_the_end():
    model, optimizer = small_model()
    data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
    with psac.make_private(model, optimizer, data, steps=4, **RUN) as private:
        batches = []
        for inputs, labels in private.loader:
            batches += [inputs, labels]
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        assert {type(tensor) for tensor in batches} == {torch.Tensor}


def test_a_backward_on_the_batch_before_is_refused():
    model, optimizer = small_model()
    data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
    private = psac.make_private(model, optimizer, data, steps=4, sampling=psac.FixedSize(), **RUN)
    batches = iter(private.loader)
    inputs, labels = next(batches)
    late = F.cross_entropy(model(inputs), labels)
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    next(batches)
    with pytest.raises(psac.PrivacyError, match="forward of an earlier batch"):
        late.backward()
