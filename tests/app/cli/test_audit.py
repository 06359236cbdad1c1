"""`psac audit`: an attack on this installation, or with the plan of a run."""

from __future__ import annotations

import pytest

import psac
from psac.app.reporting import numerals
from psac.app.training import Run

SHORT = ("--epochs", "0.5", "--physical-batch-size", "64")
FEW = ("--canaries", "4000")


@pytest.fixture
def run(call, place):
    """4 steps at the rate 0.16 with bound 0.5."""
    assert call("train", "mine.toml", *SHORT, "--bound", "0.5", "--run", "first").code == 0
    return Run(place / "first")


def test_a_single_step_keeps_its_promise(call):
    found = call("audit", *FEW)
    assert found.code == 0, found.err
    assert "guaranteed" in found.out
    assert "gaussian" in found.out
    assert "passed" in found.out


def test_a_run_is_attacked_with_its_own_plan(call, run, monkeypatch):
    asked = []
    attack = psac.audit
    monkeypatch.setattr(psac, "audit", lambda **plan: asked.append(plan) or attack(**plan))
    found = call("audit", "first", *FEW)
    assert found.code == 0, found.err
    (plan,) = asked
    (entry,) = run.ledger().entries
    assert plan["noise_multiplier"] == entry.noise_multiplier == 4.0
    assert plan["steps"] == run.summary()["steps"]
    assert plan["sampling_rate"] == pytest.approx(32 / 200)
    assert plan["clipping"] == psac.PSAC(r=0.2, bound=0.5)
    promised = run.ledger().epsilon(run.summary()["delta"])
    assert f"the run guarantees epsilon {numerals.epsilon(promised)} at delta 1e-4" in found.out
    assert "clopper_pearson" in " ".join(found.out.split())


@pytest.mark.filterwarnings("ignore::psac.PrivacyWarning")
def test_what_the_epsilon_of_the_attacked_run_does_not_cover_is_said(call, place):
    text = (place / "mine.toml").read_text()
    (place / "own.toml").write_text(text.replace('classes = ["0", "1"]', "unsafe = true"))
    assert call("train", "own.toml", *SHORT, "--run", "first").code == 0
    found = call("audit", "first", *FEW)
    sentence = "The classes in the array y were read off the private records."
    assert f"It does not cover what psac warned of: {sentence}" in " ".join(found.out.split())


def test_noise_that_is_too_small_fails_the_command(call, run, monkeypatch):
    honest = psac.private.run.add_noise_

    def faint(tensors, *, std, **others):
        return honest(tensors, std=std / 20, **others)

    monkeypatch.setattr("psac.private.run.add_noise_", faint)
    assert call("audit", *FEW).code == 1
    found = call("audit", "first", *FEW)
    assert found.code == 1
    assert "FAILED" in found.out


def test_what_cannot_be_attacked_is_said(call, place):
    assert "it has no ledger" in call("audit", place).message
    fixed = ("--sampling", "fixed-size-without-replacement", "--run", "fixed")
    trained = call("train", "mine.toml", *SHORT, *fixed)
    assert trained.code == 0, trained.err
    refused = call("audit", "fixed")
    assert refused.code == 1
    assert "the attack is for Poisson sampling" in refused.message
