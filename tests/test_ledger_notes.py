"""What is wrong with a run is in its ledger before anything of the step is handed on."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import psac
from psac.accounting import Ledger
from tests.private_runs import loss, network, private_run, train

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")


class Reading(torch.optim.SGD):
    """Keeps the ledger as it is when the gradient arrives."""

    private: psac.Private

    def step(self, closure=None):
        self.seen = Ledger.from_json(self.private.ledger.to_json())
        return super().step(closure)


def run_with_a_reader(loss, **step):
    model = network()
    optimizer = Reading(model.parameters(), lr=0.1)
    private = optimizer.private = private_run(model, optimizer, noise_multiplier=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in private.loader:
            private.step(loss(batch), batch, **step)
    private.close()
    return optimizer.seen


def shifted_by_the_mean(batch):
    mean = float(batch[0].mean())
    return lambda model, x, y, number: F.cross_entropy(model(x - mean), y)


def by_a_number(model, x, y, number):
    return float(x.mean()) * loss(model, x, y, number)


def one_for_each(model, x, y, number):
    return F.cross_entropy(model(x), y, reduction="none")


def test_the_ways_are_in_the_ledger_when_the_gradient_arrives():
    assert run_with_a_reader(lambda batch: loss).isolation == ("vmap",)
    assert run_with_a_reader(lambda batch: by_a_number).isolation == ("alone",)
    seen = run_with_a_reader(lambda batch: one_for_each, batched=True)
    assert seen.isolation_statement == "tested, not by construction (batched)"


def test_what_changes_outside_is_in_the_ledger_though_warnings_are_ignored():
    assert run_with_a_reader(lambda batch: loss).warnings == ()
    (sentence,) = run_with_a_reader(shifted_by_the_mean).warnings
    assert "changed between two steps" in sentence


def test_a_restored_run_keeps_what_was_noted():
    first = private_run(noise_multiplier=1.0, seed=None, delta=1e-3)
    train(first)
    first.ledger.note_warning("Something was wrong.")
    state = first.state_dict()
    first.close()
    with pytest.warns(psac.PrivacyWarning, match="was trained before"):
        second = private_run(first.model, noise_multiplier=1.0, seed=None, delta=1e-3)
    second.load_state_dict(state)
    assert second.ledger.warnings == ("Something was wrong.",)
    assert second.ledger.isolation == ("vmap",)


def test_a_second_run_on_a_model_says_so():
    first = private_run(seed=None, noise_multiplier=1.0, delta=1e-3)
    train(first)
    first.close()
    assert first.ledger.warnings == ()
    with pytest.warns(psac.PrivacyWarning, match="was trained before"):
        second = private_run(first.model, seed=None, noise_multiplier=1.0, delta=1e-3)
    train(second)
    assert "trained before" in second.ledger.warnings[0]


def test_steps_of_a_lost_process_are_noted():
    first = private_run(seed=None, noise_multiplier=1.0, delta=1e-3)
    state = first.state_dict()
    train(first)
    first.close()
    with pytest.warns(psac.PrivacyWarning, match="was trained before"):
        second = private_run(first.model, seed=None, noise_multiplier=1.0, delta=1e-3)
    with pytest.warns(psac.PrivacyWarning, match="5 steps ran after"):
        second.load_state_dict(state)
    assert "5 steps ran after" in second.ledger.warnings[-1]
