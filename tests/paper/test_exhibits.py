"""Figures as files: what is written, what is computed again, and what a person sees."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from paper.figures.catalogue import EXHIBITS, FIGURES, THEORY
from paper.figures.exhibit import Exhibit, Folder, make, same_request
from paper.figures.theme import THEMES, label, panels

RESULTS = Path(__file__).parents[2] / "results"
QUICK = ["fig2", "fig5"]


def small(calls: list[str], **changes) -> Exhibit:
    """An exhibit with one run, which counts how often it is computed."""

    asked = changes.get("settings", {"k": 1})

    def compute(folder: Folder) -> dict:
        run = folder.run("only", asked, lambda _: calls.append("run") or {"y": [1, 4]})
        return {"points": run["y"]}

    def draw(data, theme):
        figure, (axes,) = panels(theme, 1)
        axes.plot(data["points"])
        label(axes, theme, "Points", "k", "y")
        return figure

    settings = {
        "name": "small",
        "title": "A small one",
        "command": "python -m paper small",
        "settings": {"k": 1},
        "compute": compute,
        "rows": lambda data: [{"k": k, "y": y} for k, y in enumerate(data["points"])],
        "draw": draw,
        "caption": lambda data: f"{len(data['points'])} points.",
    }
    return Exhibit(**settings | changes)


def test_an_exhibit_is_data_a_table_pictures_for_two_pages_and_a_caption(tmp_path):
    written = make(small([]), tmp_path)
    names = {path.name for path in written}
    pictures = {f"small-{theme}.{kind}" for theme in ("light", "dark") for kind in ("svg", "png")}
    assert names == {"data.json", "data.csv", "caption.md"} | pictures
    data = json.loads((tmp_path / "small" / "data.json").read_text())
    assert data["settings"] == {"k": 1}
    assert data["versions"]["torch"] == torch.__version__
    with (tmp_path / "small" / "data.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"k": "0", "y": "1"}, {"k": "1", "y": "4"}]
    caption = (tmp_path / "small" / "caption.md").read_text()
    assert caption.startswith("# A small one\n\n2 points.")
    assert "python -m paper small" in caption


def test_a_finished_run_is_not_repeated_and_pictures_are_functions_of_the_data(tmp_path):
    calls: list[str] = []
    first = {path.name: path.read_bytes() for path in make(small(calls), tmp_path)}
    second = {path.name: path.read_bytes() for path in make(small(calls), tmp_path)}
    assert first == second
    (tmp_path / "small" / "data.json").unlink()
    make(small(calls), tmp_path)
    assert calls == ["run"]


def test_other_settings_are_computed_anew(tmp_path):
    make(small([]), tmp_path)
    changed = small([], settings={"k": 2}, compute=lambda _: {"points": [7]})
    make(changed, tmp_path)
    assert json.loads((tmp_path / "small" / "data.json").read_text())["points"] == [7]


def test_a_run_of_other_settings_is_not_taken_for_a_finished_one(tmp_path):
    calls: list[str] = []
    make(small(calls), tmp_path)
    make(small(calls, settings={"k": 2}), tmp_path)
    assert calls == ["run", "run"]


def test_a_request_is_the_same_whatever_settings_recipes_have_got_since():
    recipe = {"data": "digits", "model": "linear", "batch_size": 8, "epochs": 1, "epsilon": 3.0}
    recipe |= {"learning_rate": 1.0}
    stored = {"task": {"recipe": recipe, "every": 5}}
    for changes, same in (({"copies": 1, "shift": 0}, True), ({"copies": 2, "shift": 1}, False)):
        asked = {"task": {"recipe": recipe | changes, "every": 5}}
        assert same_request(stored, asked) is same
    assert same_request({"noise": 0.6365037788606029}, {"noise": 0.6365037788606024})
    assert not same_request({"noise": 0.6365}, {"noise": 0.6366})
    assert not same_request({"seeds": [1, 2]}, {"seeds": [1, 2, 3]})
    assert not same_request({"recipe": recipe | {"gone": 1}}, {"recipe": recipe})


def refused(*_: object) -> dict:
    raise AssertionError("it is computed again")


@pytest.mark.parametrize("name", EXHIBITS)
def test_what_is_committed_is_taken_as_finished(name, tmp_path):
    place = RESULTS / ("paper" if name in FIGURES else "theory") / name
    (tmp_path / name).mkdir()
    (tmp_path / name / "data.json").write_bytes((place / "data.json").read_bytes())
    make(dataclasses.replace(EXHIBITS[name], compute=refused), tmp_path)
    caption = (tmp_path / name / "caption.md").read_bytes()
    assert caption == (place / "caption.md").read_bytes()


def test_a_damaged_file_is_named(tmp_path):
    make(small([]), tmp_path)
    (tmp_path / "small" / "data.json").write_text("{")
    with pytest.raises(ValueError, match=r"small.data\.json is damaged .* Remove it"):
        make(small([]), tmp_path)


# What the colours of linear light become without the cones for red, green or blue, after Machado
# et al. 2009.
VISION = {
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def lab(colour: str, seen_by: list[list[float]]) -> np.ndarray:
    """The colour in CIELAB, as these eyes see it."""
    values = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    light = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    light = np.clip(np.array(seen_by) @ light, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ light / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES)
def test_rules_can_be_told_apart_by_people_with_any_colour_vision(theme, vision):
    seen = {rule: lab(c, VISION[vision]) for rule, c in THEMES[theme].colours.items()}
    for first, second in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[first] - seen[second]) > 12, (first, second)


def test_data_with_a_missing_part_are_completed_when_it_is_there(tmp_path):
    make(small([], compute=lambda _: {"points": [1], "missing": ["more"]}), tmp_path)
    make(small([], compute=lambda _: {"points": [1, 2], "missing": []}), tmp_path)
    assert json.loads((tmp_path / "small" / "data.json").read_text())["points"] == [1, 2]


@pytest.mark.parametrize("name", QUICK)
def test_figures_that_need_no_training_are_drawn(name, tmp_path):
    written = make(FIGURES[name], tmp_path)
    assert all(path.stat().st_size > 0 for path in written)
    caption = (tmp_path / name / "caption.md").read_text()
    assert "Beside the paper" in caption


def test_every_exhibit_is_named_by_the_command_that_makes_it():
    for name, exhibit in FIGURES.items():
        assert (exhibit.name, exhibit.command) == (name, f"python -m paper {name}")
    assert {exhibit.command for exhibit in THEORY.values()} == {"python -m paper theory"}


def test_the_lazy_region_has_the_values_that_are_known():
    data = FIGURES["fig5"].compute(Folder(None, print))
    expected = {  # theta: SGD, DP-SGD, Auto-V, Auto-S, DP-PSAC
        0.5: (0.089, 0.004, 0, 0.019, 0.093),
        1: (0.173, 0.009, 0, 0.040, 0.182),
        2: (0.314, 0.023, 0, 0.099, 0.339),
        4: (0.460, 0.045, 0, 0.287, 0.479),
    }
    for theta, values in expected.items():
        place = int(np.argmin(np.abs(np.array(data["thetas"]) - theta)))
        found = [
            data["means"][rule][place] for rule in ("sgd", "abadi", "auto_v", "auto_s", "psac")
        ]
        np.testing.assert_allclose(found, values, atol=4e-3)


def test_in_the_lazy_region_dp_sgd_over_c_is_closer_than_psac_for_some_theta():
    from paper.figures.fig5 import where_closer

    data = FIGURES["fig5"].compute(Folder(None, print))
    assert where_closer(data, "raw", "abadi") == []
    (first, *_) = where_closer(data, "per_bound", "abadi")
    np.testing.assert_allclose(first, (3.4, 5.6), atol=0.25)


def test_settings_are_json_that_survives_a_file():
    for exhibit in [*FIGURES.values(), *THEORY.values()]:
        settings = json.loads(json.dumps(dict(exhibit.settings)))
        assert settings == json.loads(json.dumps(settings))
        assert dataclasses.replace(exhibit).settings == exhibit.settings
