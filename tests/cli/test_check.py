"""`psac check`: a model of the user's own, by file or by module."""

from __future__ import annotations

import pytest

MODELS = """
import torch
from torch import nn

def small():
    batch = torch.randn(6, 4), torch.randint(3, (6,))
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), batch

def own_loss():
    def losses(model, batch):
        return (model(batch) ** 2).sum(1)
    return nn.Linear(4, 2), losses, torch.randn(6, 4)

def mixing():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), small()[1]

def alone():
    return nn.Linear(4, 2)

def without_labels():
    return nn.Linear(4, 2), torch.randn(6, 4)

def arg(classes):
    return small()

def broken():
    raise RuntimeError("no such layer")
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", ["my_models.py", "my_models", "{}/my_models.py"])
def test_a_model_is_found_by_file_and_by_module(call, models, place):
    found = call("check", f"{place.format(models)}:small")
    assert found.code == 0, found.err
    assert "Sequential: 43 trainable parameters, 6 samples" in found.out
    assert "0.weight" in found.out
    assert "5x4" in found.out
    assert "can be trained privately     yes" in found.out


def test_a_loss_of_the_users_own_is_taken(call, models):
    found = call("check", "my_models.py:own_loss")
    assert found.code == 0, found.err
    assert "Linear: 10 trainable parameters" in found.out


def test_a_model_that_mixes_samples_is_refused_with_the_reason(call, models):
    found = call("check", "my_models.py:mixing")
    assert found.code == 1
    assert "can be trained privately  NO" in found.out
    assert "BatchNorm1d" in found.out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_models.py", "names no function"),
        ("other.py:small", "there is no file other.py"),
        ("other_module:small", "there is no module 'other_module'"),
        ("my_models.py:smal", "It has: small, own_loss, mixing"),
        ("my_models.py:arg", "takes classes: it must be callable without arguments"),
        ("my_models.py:alone", "returned (Linear). It must return (model, batch)"),
        ("my_models.py:without_labels", "returned a batch of type Tensor"),
    ],
)
def test_what_cannot_be_checked_is_said(call, models, target, message):
    found = call("check", target)
    assert found.code == 2
    assert message in found.message


def test_an_error_in_the_users_function_is_the_users_to_see(call, models):
    found = call("check", "my_models.py:broken")
    assert found.code == 1
    assert "RuntimeError: no such layer" in found.message
