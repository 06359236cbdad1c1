"""What there is: recipes, data sets, versions."""

from __future__ import annotations

import json

import psac
from psac.app.training import Recipe, load_recipe, shipped


def test_every_shipped_recipe_is_listed_by_its_whole_name(call):
    listed = call("recipes").out
    for name in shipped():
        assert f" {name} " in listed


def test_a_recipe_is_shown_as_a_file_to_save_and_change(call, tmp_path):
    for name in shipped():
        (tmp_path / "mine.toml").write_text(call("recipes", name).out)
        assert Recipe.from_toml(tmp_path / "mine.toml") == load_recipe(name)
    assert "# Fashion-MNIST in the DP-PSAC paper" in call("recipes", "fashion-mnist-cnn").out
    unknown = call("recipes", "digit-linear")
    assert unknown.code == 2
    assert "Did you mean 'digits-linear'?" in unknown.message


def test_data_sets_are_listed(call):
    listed = call("data", "list").out
    assert "cifar10" in listed
    assert "60,000" in listed


def test_a_data_set_is_fetched_and_its_folder_is_printed(call, tmp_path, monkeypatch):
    monkeypatch.setenv("PSAC_CACHE", str(tmp_path))
    fetched = call("data", "get", "digits")
    assert fetched.code == 0, fetched.err
    assert fetched.out == f"{tmp_path / 'digits'}\n"
    assert (tmp_path / "digits").is_dir()


def test_the_version_is_one_line_and_verbose_tells_what_decides_how_psac_runs(call, monkeypatch):
    assert call("version").out == f"{psac.__version__}\n"
    assert json.loads(call("version", "--json").out) == {"psac": psac.__version__}
    monkeypatch.setenv("PSAC_CACHE", "/some/where")
    found = json.loads(call("version", "--verbose", "--json").out)
    for name in ("python", "torch", "dp-accounting", "noise generator", "threads"):
        assert found[name]
    assert found["data cache"] == "/some/where"
    assert found["extras"]["cli"] is True
    table = call("version", "--verbose").out
    assert "noise generator" in table
    assert "/some/where" in table


def test_the_version_and_help_have_the_usual_options_too(call):
    assert call("--version").out == f"{psac.__version__}\n"
    assert call("train", "-h").out == call("train", "--help").out


def test_the_list_of_recipes_is_whole_in_a_narrow_terminal(call, monkeypatch):
    monkeypatch.setattr("psac.app.cli.recipes.console.width", 80)
    listed = call("recipes").out
    assert "…" not in listed
    assert "epsilon" in listed
    assert "5e-6" in listed


def test_the_noise_generator_is_said_to_be_slow_where_nothing_compiles(call, monkeypatch):
    monkeypatch.setattr("psac.noise.loops.compiled", lambda: None)
    assert "no C compiler" in call("version", "--verbose").out
