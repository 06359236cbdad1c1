"""Habits of users' own loops: Hugging Face data sets, loss scaling."""

from __future__ import annotations

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
