"""`psac demo`: three rules on one budget, what stands in without a network, and going on."""

from __future__ import annotations

import pytest

import psac
from psac.app import data
from psac.app.training import Run

REAL_LOAD, REAL_TRAIN = psac.training.load_recipe, psac.training.train


@pytest.fixture
def asked(place, monkeypatch):
    """Recipes are small ones; which were asked for is kept."""
    names = []

    def load(name, **settings):
        names.append(name)
        return REAL_LOAD("mine.toml", **settings | {"epochs": 0.2})

    monkeypatch.setattr(psac.training, "load_recipe", load)
    monkeypatch.setattr(data, "fetch", lambda name: None)
    return names


def test_three_rules_are_compared_and_differ_in_nothing_else(call, place, asked):
    done = call("demo", "--folder", "shown")
    assert done.code == 0, done.err
    assert set(asked) == {"fashion-mnist-cnn"}
    first, *others = (
        Run(f"shown/fashion-mnist-cnn-{rule}").recipe() for rule in ("psac", "abadi", "auto_s")
    )
    for other in others:
        names = {difference.partition(":")[0] for difference in first.differences(other)}
        assert names == {"rule", "r"}
    rows = [line.split() for line in done.out.splitlines() if "█" in line and "step" not in line]
    assert [row[0] for row in rows] == ["DP-PSAC", "DP-SGD", "Auto-S"]
    for row, rule in zip(rows, ("psac", "abadi", "auto_s"), strict=True):
        summary = Run(f"shown/fashion-mnist-cnn-{rule}").summary()
        assert row[1] == f"{summary['accuracy']:.2%}"
        assert row[-2] == "1e-4"
    for page in ("shown/report.html", "shown/fashion-mnist-cnn-psac/report.html"):
        assert f" {page} " in done.out
        assert (place / page).exists()


def test_without_a_network_the_digits_stand_in_and_the_demo_says_so(
    call, place, asked, monkeypatch
):
    def fetch(name):
        raise data.DataNotFound("no network [here]")

    monkeypatch.setattr(data, "fetch", fetch)
    done = call("demo")
    assert done.code == 0, done.err
    assert set(asked) == {"digits-linear"}
    assert "Fashion-MNIST cannot be fetched: no network [here]" in done.out
    assert "8 x 8 digits of scikit-learn instead" in done.out


def test_a_demo_that_was_stopped_goes_on(call, place, asked, monkeypatch):
    calls = []

    def train(recipe, *arguments, **settings):
        calls.append(recipe.rule)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return REAL_TRAIN(recipe, *arguments, **settings)

    monkeypatch.setattr(psac.training, "train", train)
    stopped = call("demo")
    assert stopped.code == 130
    assert "psac demo --folder runs/demo --epochs 5" in stopped.err
    assert call("demo").code == 0
    assert calls == ["psac", "abadi", "psac", "abadi", "auto_s"]
