"""`psac check`: a model of the user's own, by file or by module."""

from __future__ import annotations

import re

import pytest

MODELS = """
import torch
from torch import nn

def small():
    batch = torch.randn(6, 4), torch.randint(3, (6,))
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), batch

def own_loss():
    def loss(model, x):
        return (model(x) ** 2).sum()
    return nn.Linear(4, 2), loss, torch.randn(6, 4)

def by_name():
    def loss(model, *, x, target):
        return (model(x) - target).abs().sum()
    return nn.Linear(4, 2), loss, {"x": torch.randn(6, 4), "target": torch.randn(6, 2)}

def by_a_number():
    def loss(model, x):
        return model(x).sum() * float(x.mean())
    return nn.Linear(4, 2), loss, torch.randn(6, 4)

def looping():
    def loss(model, x):
        return torch.renorm(model(x), 2, 0, 1.0).sum()
    return nn.Linear(4, 2), loss, torch.randn(6, 4)

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
    assert "Sequential: 43 trainable parameters, 6 records" in found.out
    assert "0.weight" in found.out
    assert "5x4" in found.out
    assert facts_of(found.out)["can be trained privately"] == "yes"
    assert facts_of(found.out)["records are isolated"] == "by construction (torch.vmap)"


def facts_of(out: str) -> dict[str, str]:
    """The lines below the table, by name."""
    pairs = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in out.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


@pytest.mark.parametrize("name", ["own_loss", "by_name"])
def test_a_loss_of_the_users_own_is_taken(call, models, name):
    found = call("check", f"my_models.py:{name}")
    assert found.code == 0, found.err
    assert "Linear: 10 trainable parameters" in found.out


def test_a_model_that_mixes_samples_is_refused_with_the_reason(call, models):
    found = call("check", "my_models.py:mixing")
    assert found.code == 1
    assert facts_of(found.out)["can be trained privately"] == "NO"
    assert facts_of(found.out)["records are isolated"] == "not checked"
    assert "BatchNorm1d" in found.out


def test_the_rule_of_each_parameter_is_shown(call, models):
    found = call("check", "my_models.py:small")
    rules = re.findall(r"(\d\.(?:weight|bias)) +│ \S+ +│ (\w+)", found.out)
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    assert dict(rules) == dict.fromkeys(names, "linear")


def test_a_function_that_vmap_refuses_is_said_to_run_one_record_at_a_time(call, models):
    found = call("check", "my_models.py:by_a_number")
    assert found.code == 0, found.err
    facts = facts_of(found.out)
    assert facts["can be trained privately"] == "yes, slowly"
    assert facts["records are isolated"] == "by construction (one record at a time)"
    assert "my_models.py, line" in facts["reason"]


def test_operations_that_torch_runs_record_by_record_are_named(call, models):
    found = call("check", "my_models.py:looping")
    assert found.code == 0, found.err
    assert "renorm" in facts_of(found.out)["record by record in torch"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_models.py", "does not name a function"),
        ("other.py:small", "there is no file other.py"),
        ("other_module:small", "there is no module 'other_module'"),
        ("my_models.py:smal", "It has: small, own_loss, by_name"),
        ("my_models.py:arg", "needs classes, but it is called without arguments"),
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
