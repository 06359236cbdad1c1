"""Recipes: every wrong setting has its message, and a file says all that the value does."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import psac
from psac.app import models, toml
from psac.app.training import Recipe, load_recipe, shipped
from psac.app.training.optimization import OPTIMIZERS, SCHEDULES, optimizer_for
from tests.app.training.small import recipe

FULL = {
    "data": 'C:\\own "data"',
    "data_root": "somewhere/é\x7f",
    "data_settings": {"label": "class", "ranges": {"age of person": [0, 99.5]}, "categories": {}},
    "validation_fraction": 0.1,
    "test_is_public": True,
    "most_frequent_share": 0.7,
    "model": "mlp",
    "model_settings": {"hidden": (64, 32)},
    "rule": "auto_s",
    "r": 0.01,
    "bound": 2,
    "scale": 1e-7,
    "noise_multiplier": 1.5,
    "delta": 1e-06,
    "sampling": "balls-in-bins",
    "batch_size": 10,
    "epochs": 0.5,
    "copies": 3,
    "shift": 2,
    "physical_batch_size": 5,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "schedule": "cosine",
    "precision": "bfloat16",
    "seed": 3,
    "device": "cpu",
}


@pytest.mark.parametrize("settings", [FULL, dataclasses.asdict(recipe())])
def test_a_recipe_survives_its_file(tmp_path, settings):
    path = tmp_path / "recipe.toml"
    whole = Recipe(**settings)
    path.write_text(whole.to_toml(), encoding="utf-8")
    assert Recipe.from_toml(path) == whole


def test_the_full_recipe_sets_everything():
    left = {field.name for field in dataclasses.fields(Recipe)} - FULL.keys()
    assert left == {"epsilon", "momentum"}  # which do not go with noise_multiplier and adamw


numbers = st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.booleans() | numbers | words | st.lists(numbers | words, max_size=3)


@given(st.dictionaries(words, values | st.dictionaries(words, values, max_size=3), max_size=4))
def test_what_is_written_as_toml_is_read_back(settings):
    assert toml.tomllib.loads(toml.written(settings)) == settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": 3}, "data is 3: it must be text"),
        ({"data": ""}, "it must be text"),
        ({"model": "resnet"}, r"model 'resnet' is unknown\. Known: cnn, .*Did you mean 'resnet9'"),
        ({"model_settings": {"hiden": [3]}}, "Did you mean 'hidden'"),
        ({"model_settings": 3}, "it must be a table"),
        ({"rule": "psca"}, r"rule 'psca' is unknown\. Known: abadi, adaptive_psac, .*'psac'\?"),
        ({"rule": "abadi", "r": 0.1}, "abadi setting 'r' is unknown"),
        ({"r": -1}, r"r is -1: allowed is \(0, inf\)"),
        ({"bound": math.inf}, "allowed is"),
        ({"sampling": "shuffle"}, "sampling 'shuffle' is refused"),
        ({"sampling": "poison"}, "Did you mean 'poisson'"),
        (
            {"epsilon": 3.0},
            "give either epsilon, .* noise_multiplier: epsilon=3.0, noise_multiplier=4.0",
        ),
        ({"noise_multiplier": None}, "give either epsilon"),
        ({"noise_multiplier": math.nan}, "noise_multiplier is nan"),
        ({"delta": 1.0}, r"allowed is \(0, 1\)"),
        ({"batch_size": 0}, "batch_size is 0: it must be a whole number, at least 1"),
        ({"batch_size": 2.5}, "it must be a whole number"),
        ({"batch_size": True}, "it must be a whole number"),
        ({"epochs": "3"}, "epochs is '3': it must be a number in \\(0, inf\\)"),
        ({"epochs": None}, "epochs is None"),
        ({"optimizer": "admw"}, "Did you mean 'adamw'"),
        ({"optimizer": "adam"}, "momentum is 0.9, but optimizer 'adam' would ignore it"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"seed": -1}, "seed is -1"),
        ({"copies": 0, "shift": 1}, "copies is 0: it must be a whole number, at least 1"),
        ({"copies": 2}, "copies is 2 and shift is 0: give both"),
        ({"shift": 1}, "copies is 1 and shift is 1: give both"),
        ({"validation_fraction": 1.0}, r"allowed is \[0, 1\)"),
    ],
)
def test_wrong_settings_are_refused_with_what_is_allowed(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        recipe(**settings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": -3}, "epochs is -3: allowed"),
        ({"rule": "psca"}, "rule 'psca' is unknown"),
        ({"shift": 1}, "copies is 1 and shift is 1"),  # named by another setting than the one given
    ],
)
def test_errors_of_settings_that_were_given_do_not_blame_the_file(tmp_path, given, message):
    path = tmp_path / "mine.toml"
    path.write_text(recipe().to_toml())
    with pytest.raises(ValueError, match=f"^{message}"):
        Recipe.from_toml(path, **given)


@pytest.mark.parametrize(
    ("word", "meant"), [("lr", "learning_rate"), ("max_grad_norm", "bound"), ("epoch", "epochs")]
)
def test_words_of_other_libraries_lead_to_the_setting_that_is_meant(word, meant):
    with pytest.raises(ValueError, match=rf"setting '{word}' is unknown.*Did you mean '{meant}'\?"):
        Recipe.from_settings({word: 1})


def test_errors_of_a_file_name_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    text = recipe().to_toml()
    path.write_text(text.replace("learning_rate", "learing_rate"))
    with pytest.raises(ValueError, match=r"mine\.toml: setting 'learing_rate'.*'learning_rate'\?"):
        Recipe.from_toml(path)
    path.write_text('data = "digits"\nmodel = "linear"\n')
    with pytest.raises(ValueError, match=r"mine\.toml: batch_size, epochs, learning_rate missing"):
        Recipe.from_toml(path)
    path.write_text(text.replace("epochs = 3.0", "epochs = -3.0"))
    with pytest.raises(ValueError, match=r"mine\.toml: epochs is -3"):
        Recipe.from_toml(path)
    with pytest.raises(ValueError, match=r"mine\.toml: epochs is -3"):
        Recipe.from_toml(path, r=0.5)
    path.write_text("data = ")
    with pytest.raises(ValueError, match=r"mine\.toml is not valid TOML"):
        Recipe.from_toml(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Recipe.from_toml(tmp_path / "none.toml")


def test_overrides_replace_and_epsilon_takes_the_place_of_noise(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(recipe().to_toml())
    changed = Recipe.from_toml(path, epsilon=2.0, seed=None, data_root=tmp_path)
    assert (changed.epsilon, changed.noise_multiplier, changed.seed) == (2.0, None, None)
    assert changed.data_root == str(tmp_path)
    with pytest.raises(ValueError, match="setting 'epochss' is unknown"):
        Recipe.from_toml(path, epochss=3)


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"rule": "abadi"}, {"r": None, "scale": None}),
        ({"rule": "auto_s", "r": 0.05}, {"r": 0.05, "scale": None}),
        ({"optimizer": "adam"}, {"momentum": 0.0}),
        ({"model": "linear"}, {"model_settings": {}}),
        ({"data": "digits"}, {"data_root": None, "data_settings": {}}),
    ],
)
def test_what_belongs_to_a_setting_goes_with_it(tmp_path, change, gone):
    own = {"rule": "psac", "r": 0.2, "scale": 2.0, "bound": 0.5, "data_root": "here"}
    first = recipe(**own, data_settings={"size": 8})
    (tmp_path / "mine.toml").write_text(first.to_toml())
    changed = Recipe.from_toml(tmp_path / "mine.toml", **change)
    assert changed == dataclasses.replace(first, **(gone | change))
    assert changed.bound == 0.5
    same = {name: getattr(first, name) for name in change}
    assert Recipe.from_toml(tmp_path / "mine.toml", **same) == first


def test_tables_are_joined_key_by_key(tmp_path):
    (tmp_path / "mine.toml").write_text(recipe(data_settings={"label": "y", "size": 8}).to_toml())
    changed = Recipe.from_toml(tmp_path / "mine.toml", data_settings={"size": 16})
    assert changed.data_settings == {"label": "y", "size": 16}


def test_every_rule_gets_its_settings():
    for name in psac.clipping.rules.RULES:
        assert recipe(rule=name, bound=0.5).clipping().bound == 0.5
    adaptive = recipe(rule="adaptive_psac", r=0.2, scale=3.0).clipping()
    assert adaptive == psac.AdaptivePSAC(r=0.2, initial_scale=3.0)
    assert recipe(rule="psac").clipping() == psac.PSAC()


def test_shipped_recipes_are_valid_and_those_of_the_paper_are_there():
    assert {"mnist-cnn", "fashion-mnist-cnn", "digits-linear", "imagenette-resnet9"} <= {*shipped()}
    for name in shipped():
        assert load_recipe(name).seed is None  # private as it comes
    paper = load_recipe("fashion-mnist-cnn")
    assert paper.clipping() == psac.PSAC(r=0.1, bound=0.1)
    assert (paper.batch_size, paper.epochs, paper.learning_rate) == (2048, 40, 4.0)


def test_a_recipe_is_found_by_name_or_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(recipe().to_toml())
    assert load_recipe(path) == load_recipe(str(path)) == recipe()
    with pytest.raises(ValueError, match="Did you mean 'mnist-cnn'"):
        load_recipe("mnist-cn")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_get_their_settings(name):
    model = models.build("linear", input_shape=(2,), classes=2)
    optimizer = optimizer_for(model, name, learning_rate=0.3, momentum=0.7, weight_decay=0.1)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.3, 0.1)
    assert group.get("momentum") == (0.7 if name == "sgd" else None)


def test_schedules_start_at_one_and_all_but_the_constant_end_at_zero():
    assert all(schedule(0.0) == 1.0 for schedule in SCHEDULES.values())
    assert SCHEDULES["constant"](1.0) == 1.0
    assert SCHEDULES["cosine"](1.0) == SCHEDULES["linear"](1.0) == 0.0
    assert SCHEDULES["cosine"](0.5) == pytest.approx(0.5)
