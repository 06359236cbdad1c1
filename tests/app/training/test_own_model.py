"""A network of the user's own in a recipe: built, kept with the run, and only as it was."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import signal

import pytest
import torch

import psac
from psac.app.training import Interrupted, Run, RunError, train
from psac.app.training import trainer as trainer_module
from psac.app.training.own_model import build
from tests.app.training.small import recipe, splits
from tests.app.training.test_trainer import at

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")
NETWORKS = """
import torch
from torch import nn

def plain():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

def fitted(input_shape, classes, width=6):
    return nn.Sequential(nn.Linear(*input_shape, width), nn.Tanh(), nn.Linear(width, classes))

def for_check():
    return plain(), (torch.randn(6, 4), torch.randint(3, (6,)))

def mixing(input_shape, classes):
    return nn.Sequential(nn.BatchNorm1d(*input_shape), nn.Linear(*input_shape, classes))

class Measuring(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * float(x.mean())

def measuring():
    return Measuring()

def wants(more):
    return plain()

def nothing():
    return 3
"""


@pytest.fixture(autouse=True)
def networks(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "load_splits", lambda *_: splits(public=True))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "networks.py").write_text(NETWORKS)
    return tmp_path / "networks.py"


def asked(name, **settings):
    return recipe(model=f"networks.py:{name}", **({"model_settings": {}, "epochs": 1} | settings))


@pytest.mark.parametrize(
    ("name", "settings", "parameters"),
    [("plain", {}, 43), ("fitted", {}, 51), ("fitted", {"width": 2}, 19), ("for_check", {}, 43)],
)
def test_a_run_trains_the_network_and_keeps_it(networks, name, settings, parameters):
    run = train(asked(name, model_settings=settings), "run")
    assert run.summary()["steps"] == 6
    assert run.model_source_path.read_bytes() == networks.read_bytes()
    kept = json.loads(run.environment_path.read_text())["model_sha256"]
    assert kept == hashlib.sha256(networks.read_bytes()).hexdigest()
    networks.unlink()  # the run stands for itself
    model = Run("run").model()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.randn(5, 4)).shape == (5, 3)
    assert Run("run").recipe() == run.recipe()


def test_the_header_of_the_model_names_no_folder_of_its_user(networks, monkeypatch):
    run = train(dataclasses.replace(asked("plain"), model=f"{networks}:plain"), "run")
    assert run.model_facts()["model"] == "networks.py:plain"
    assert str(networks.parent).encode() not in run.model_path.read_bytes()
    monkeypatch.chdir("run")  # where networks.py is not
    assert len(list(Run(".").model().parameters())) == 4
    networks.unlink()
    assert len(list(Run(".").model().parameters())) == 4


def test_a_network_that_vmap_refuses_is_trained_one_record_at_a_time_and_the_summary_says_so():
    with pytest.warns(psac.SlowPathWarning, match=r"networks\.py, line"):
        run = train(asked("measuring"), "run")
    assert run.summary()["isolation"] == "by construction (alone)"
    assert run.summary()["steps"] == 6


def stopped(**settings):
    """A run that was interrupted."""
    strike = at("step", 3, lambda: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(Interrupted):
            train(asked("fitted", **settings), "run", observer=strike)
    finally:
        signal.signal(signal.SIGINT, before)
    return Run("run")


def test_a_run_goes_on_without_the_users_file(networks):
    whole = train(asked("fitted"), "whole")
    stopped()
    networks.unlink()
    run = train(asked("fitted"), "run", resume=True)
    assert run.model_path.read_bytes() == whole.model_path.read_bytes()


def test_a_run_does_not_go_on_with_a_file_that_was_changed(networks):
    run = stopped()
    networks.write_text(NETWORKS.replace("Tanh", "ReLU"))  # the same parameters
    with pytest.raises(RunError, match=r"networks\.py was changed after the run in run was start"):
        train(asked("fitted"), "run", resume=True)
    networks.write_text(NETWORKS)
    run.model_source_path.write_text(NETWORKS.replace("Tanh", "ReLU"))
    with pytest.raises(RunError, match=r"model\.py is missing or was changed"):
        train(asked("fitted"), "run", resume=True)
    assert run.ledger().steps == 3


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("networks.py:plane", {}, "has no function 'plane'. It has: plain, fitted"),
        (
            "nowhere.py:plain",
            {},
            r"nowhere\.py, which model 'nowhere\.py:plain' names, does not exist",
        ),
        ("networks.py:wants", {}, "takes more, but would get none"),
        ("networks.py:fitted", {"depth": 2}, "takes input_shape, classes, width, but would get"),
        ("networks.py:nothing", {}, "returned a int"),
        ("networks.py:mixing", {}, "BatchNorm1d"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    model, settings, message, tmp_path
):
    with pytest.raises((ValueError, TypeError, psac.PrivacyError), match=message):
        train(recipe(model=model, model_settings=settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_without_a_function_is_said_to_need_one():
    with pytest.raises(ValueError, match=r"model 'networks\.py' is unknown.*FILE\.py:FUNCTION"):
        recipe(model="networks.py", model_settings={})


def test_the_network_is_built_for_the_shape_and_the_classes(networks):
    model = build("networks.py:fitted", networks, input_shape=(7,), classes=2, settings={})
    assert model(torch.randn(3, 7)).shape == (3, 2)
