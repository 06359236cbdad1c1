"""The figures about training: what is measured, and that measuring and stopping change nothing."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import psac
from paper.figures import cosine_by_norm, fig3, fig4, observed
from paper.figures.cosine_by_norm import Task
from paper.figures.exhibit import Folder, make
from paper.figures.sample_gradients import gradients_of
from paper.figures.skewed import Skewed
from paper.figures.theme import THEMES
from paper.theory import Schedule, weight
from psac.app.data.entry import DataNotFound
from psac.app.training.recipe import Recipe
from psac.app.training.splits import load_splits

SMALL = Recipe(
    data="digits",
    model="linear",
    rule="psac",
    batch_size=64,
    epochs=1,
    learning_rate=1.0,
    noise_multiplier=1.0,
    seed=1,
)


def model_and_batch():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    return model, torch.randn(17, 6), torch.randint(0, 3, (17,))


def loss(model, inputs, labels):
    return F.cross_entropy(model(inputs), labels)


def test_rows_are_the_gradients_of_a_loop_over_samples():
    model, inputs, labels = model_and_batch()
    parameters = list(model.parameters())
    loop = [
        torch.autograd.grad(loss(model, inputs[i : i + 1], labels[i : i + 1]), parameters)
        for i in range(17)
    ]
    expected = torch.stack([torch.cat([g.flatten() for g in one]) for one in loop])
    torch.testing.assert_close(gradients_of(model, inputs, labels), expected)


def test_the_cosine_of_a_rule_is_that_of_the_librarys_weighted_gradient():
    model, inputs, labels = model_and_batch()
    found = fig3.measure(model, inputs, labels, 1.0)
    batch = (inputs, labels)
    true = torch.autograd.grad(loss(model, *batch), list(model.parameters()))
    true = torch.cat([g.flatten() for g in true])
    for name, rule in (("psac", psac.PSAC(r=0.1)), ("abadi", psac.Abadi(bound=0.1))):
        weighted = psac.weighted_gradient(model, loss, batch, rule)
        weighted = torch.cat([g.flatten() for g in weighted.values()])
        assert found["cosine"][name] == pytest.approx(
            float(F.cosine_similarity(weighted, true, dim=0)), abs=1e-5
        )


def test_noise_lowers_the_cosine_and_no_noise_leaves_it():
    model, inputs, labels = model_and_batch()
    without, much = (fig3.measure(model, inputs, labels, noise) for noise in (0.0, 100.0))
    assert without["noisy"] == pytest.approx(without["cosine"], abs=1e-5)
    assert all(abs(much["noisy"][rule]) < without["cosine"][rule] for rule in fig3.RULES)


def test_a_samples_own_part_can_be_left_out_of_the_mean():
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
    to_all, to_others = cosine_by_norm.both_cosines(rows)
    for i in range(9):
        others = torch.cat([rows[:i], rows[i + 1 :]]).mean(0)
        assert float(to_all[i]) == pytest.approx(
            float(F.cosine_similarity(rows[i], rows.mean(0), dim=0)), abs=1e-5
        )
        assert float(to_others[i]) == pytest.approx(
            float(F.cosine_similarity(rows[i], others, dim=0)), abs=1e-5
        )


def test_the_share_of_a_rise_that_is_a_samples_own_part():
    deciles = {"all": [0.0] * 9 + [0.4], "others": [0.0] * 9 + [0.3]}
    assert cosine_by_norm.own_part({"deciles": deciles}) == pytest.approx(0.25)
    assert "25% of the rise" in cosine_by_norm.verdict({"title": "Made up", "deciles": deciles})
    flat = {"title": "Made up", "deciles": dict.fromkeys(deciles, [0.2] * 10)}
    assert "do not rise" in cosine_by_norm.verdict(flat)


def test_bins_and_deciles_hold_every_sample_once():
    model, inputs, labels = model_and_batch()
    found = cosine_by_norm.measure(model, inputs, labels, 1.0)
    for k in range(2):
        assert sum(counts[k][0] for counts in found["bins"].values()) == 17
        assert sum(counts[k][0] for counts in found["deciles"]) == 17
    averaged = cosine_by_norm.averages({"measured": [found, found]})
    assert sum(row["samples"] for row in averaged["bins"]) == 34


def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    monkeypatch.setattr(observed, "SAVE_SECONDS", 0.0)
    splits = load_splits(SMALL)

    def count(model, inputs, labels, noise):
        return {"samples": len(labels), "weight": float(next(model.parameters()).detach().sum())}

    whole = observed.observed(SMALL, splits, tmp_path / "whole", measure=count, every=3)
    seen = []

    def stopped(*arguments):
        seen.append(count(*arguments))
        if len(seen) == 4:
            raise KeyboardInterrupt
        return seen[-1]

    with pytest.raises(KeyboardInterrupt):
        observed.observed(SMALL, splits, tmp_path / "other", measure=stopped, every=3)
    assert (tmp_path / "other").exists()
    resumed = observed.observed(SMALL, splits, tmp_path / "other", measure=count, every=3)
    assert resumed == whole
    assert not list(tmp_path.iterdir())


def test_measuring_changes_nothing_of_a_run(tmp_path):
    splits = load_splits(SMALL)
    plain = observed.observed(SMALL, splits, tmp_path / "plain")
    measured = observed.observed(
        SMALL, splits, tmp_path / "measured", measure=cosine_by_norm.measure, every=2
    )
    assert measured["accuracy"] == plain["accuracy"]
    assert len(measured["measured"]) == measured["steps"] // 2


def test_a_task_whose_data_cannot_be_had_is_missing_and_the_others_are_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    budget = {"epsilon": 3.0, "noise_multiplier": None, "delta": 1e-4}
    here = dataclasses.replace(SMALL, rule="abadi", bound=0.1, **budget)
    there = dataclasses.replace(here, data="celeba")

    def load(recipe):
        if recipe.data == "celeba":
            raise DataNotFound("celeba is not in the cache.\nAll that was tried.")
        return load_splits(recipe)

    monkeypatch.setattr(cosine_by_norm, "load_splits", load)
    tasks = [
        Task(name="here", title="Digits", recipe=here, every=5),
        Task(name="there", title="Elsewhere", recipe=there, every=5),
    ]
    make(cosine_by_norm.exhibit("figx", "Figure X", tasks), tmp_path)
    caption = (tmp_path / "figx" / "caption.md").read_text()
    assert "`there` is missing: celeba is not in the cache." in caption
    assert "Digits: the largest tenth" in caption


def heat(values) -> dict:
    """Figure 4's data with accuracies by (rule, place of the setting, place of the rate)."""
    return {
        "cells": [
            {
                "rule": rule,
                "setting": setting,
                "value": value,
                "learning_rate": rate,
                "accuracy": values(rule, i, j),
                "accuracies": [values(rule, i, j) + by for by in (-0.01, 0.0, 0.01)],
            }
            for rule, (setting, settings) in fig4.GRIDS.items()
            for i, value in enumerate(settings)
            for j, rate in enumerate(fig4.RATES)
        ],
        "settings": {"schedule": fig4.SCHEDULE, "seeds": fig4.SEEDS},
        "steps": 1,
        "noise_multiplier": 1.0,
    }


def test_a_ridge_is_flat_along_the_product_and_steep_along_the_bound():
    data = heat(lambda rule, i, j: 0.8 - 0.1 * abs((i if rule == "abadi" else 2) + j - 4))
    assert fig4.spread(data, "psac") == pytest.approx(0)
    assert fig4.spread(data, "abadi") == pytest.approx(0.2)
    assert fig4.spread_at_equal_product(data) == pytest.approx(0)
    assert "Agrees" in fig4.caption(data)
    assert fig4.standard_error(data, "psac") == pytest.approx(0.01 / 3**0.5)
    assert len(fig4.rows(data)) == 225


def test_both_axes_of_dp_sgd_grow_by_the_same_factor():
    ratios = {b / a for axis in (fig4.RATES, fig4.BOUNDS) for a, b in itertools.pairwise(axis)}
    np.testing.assert_allclose(list(ratios), 4.0)


def test_figures_3_and_4_are_drawn_from_data_alone():
    recipe = {"batch_size": 1, "learning_rate": 1.0, "bound": 0.1, "epochs": 1}
    runs = []
    for rule in fig3.TRAINED:
        for seed in (1, 2):
            kinds = {kind: dict.fromkeys(fig3.RULES, 0.1 * seed) for kind in ("cosine", "noisy")}
            measured = [{"step": 10, **kinds}, {"step": 20, **kinds}]
            common = {"asked": {"recipe": recipe}, "steps": 20, "noise_multiplier": 1.0}
            runs.append({"rule": rule, "seed": seed, "measured": measured, **common})
    for theme in THEMES.values():
        assert len(fig3.draw({"runs": runs}, theme).axes) == 3
        assert len(fig4.draw(heat(lambda rule, i, j: 0.7), theme).axes) == 3
    assert "0% of batches before the noise and 0% with it" in fig3.caption({"runs": runs})


def test_training_on_the_skewed_problem_comes_to_rest_where_it_should():
    problem = Skewed()
    rest = problem.resting_gradient(lambda s: weight(s, 0.1))
    quiet = Schedule(num_parameters=3, noise_multiplier=1e-6, batch_size=4096, num_steps=3000)
    found = problem.smallest_gradient(
        lambda s: weight(s, 0.1), quiet, 0.05, start=1.0, repetitions=2, seed=0
    )
    np.testing.assert_allclose(found, rest, rtol=0.35)
    assert rest < problem.assumptions.edge


def test_the_skewed_samples_satisfy_what_is_assumed_of_them():
    problem = Skewed(height=0.7, share=0.2)
    shares = np.array([0.2, 0.8])
    assert np.sum(shares * problem.heights) == pytest.approx(0)
    assert np.abs(problem.heights).max() == pytest.approx(float(problem.assumptions.tau0))


def test_the_folder_of_an_exhibit_notes_what_it_computes(tmp_path):
    said: list[str] = []
    folder = Folder(tmp_path / "figy", said.append)
    for _ in range(2):
        folder.run("one", {"k": 1}, lambda _: {"x": 1})
    assert said == ["figy: one"]
