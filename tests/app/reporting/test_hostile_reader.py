"""Whoever reads all that may be published of a run finds nothing of any record."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from psac.app.reporting import report
from psac.app.reporting.publishing import files_to_publish
from psac.app.reporting.thumbnails import png
from psac.app.training import Recipe, Run, train

SETTINGS = {
    **{"model": "linear", "noise_multiplier": 4.0, "delta": 1e-3},
    **{"batch_size": 16, "epochs": 0.5, "learning_rate": 0.5},
}


def published(run: Run) -> dict[str, bytes]:
    """The files that the command line names, and the page to publish."""
    page = report(run.folder, publish=True)
    files = [page, *(run.folder / name for name in files_to_publish(run.folder))]
    found = {path.name: path.read_bytes() for path in files}
    assert {"report-public.html", "model.safetensors", "ledger.json"} <= set(found)
    return found


# ---- A table


def table(random: np.random.Generator, count: int, start: int) -> list[list[str]]:
    rows = []
    for k in range(start, start + count):
        age, dose = random.uniform(20, 90), random.uniform(0, 5)
        work = "lighthouse keeper" if k == start + 3 else random.choice(["farm", "shop"])
        back = "yes" if age + 9 * dose > 75 else "no"
        rows.append([f"P-{k:05}", f"Name{k} Family{k}", f"{age:.5f}", f"{dose:.5f}", work, back])
    return rows


@pytest.fixture(scope="module")
def patients(tmp_path_factory) -> tuple[Run, list[str]]:
    """A run on patients, and all cells that occur once."""
    place = tmp_path_factory.mktemp("patients")
    random, cells = np.random.default_rng(0), Counter()
    for name, count, start in (("train", 120, 1), ("test", 40, 30_000)):
        rows = table(random, count, start)
        cells.update(cell for row in rows for cell in row)
        lines = ["id,name,age,dose,work,back", *map(",".join, rows)]
        (place / "all").mkdir(exist_ok=True)
        (place / "all" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    own = {
        **{"label": "back", "classes": ["no", "yes"], "ignore": ["id", "name"]},
        "ranges": {"age": [0, 120], "dose": [0, 5]},
        "categories": {"work": ["farm", "shop"]},
    }
    recipe = Recipe(data=str(place / "all"), data_settings=own, **SETTINGS)
    found = [cell for cell, times in cells.items() if times == 1]
    return train(recipe, place / "run"), found


def test_no_cell_of_a_table_is_in_any_file_that_may_be_published(patients):
    run, cells = patients
    assert len(cells) > 600
    files = published(run)
    assert not run.predictions_path.exists()
    hits = {(name, cell) for name, data in files.items() for cell in cells if cell.encode() in data}
    assert not hits
    assert not [name for name, data in files.items() if str(run.folder.parent).encode() in data]
    page = files["report-public.html"].decode()
    assert "public test" not in page
    report(run.folder)
    accuracy = f"{100 * run.summary()['accuracy']:.1f}"
    assert f"{accuracy}\N{NARROW NO-BREAK SPACE}%" not in page
    assert f"{accuracy}\N{NARROW NO-BREAK SPACE}%" in (run.folder / "report.html").read_text()


def test_a_result_on_private_test_records_says_so_wherever_it_is_written(patients):
    run, _ = patients
    lines = [line for line in run.metrics() if "accuracy" in line]
    assert lines
    for line in (*lines, run.summary()):
        assert line["private"] is False
        assert "public" not in line
    assert run.summary()["constant_accuracy"] is None  # it would be counted on private records


# ---- Pictures


def pictures(place: Path, random: np.random.Generator) -> list[tuple[Path, np.ndarray]]:
    found = []
    for split, count in (("train", 24), ("test", 10)):
        for name, low in (("dark", 0), ("light", 120)):
            folder = place / split / name
            folder.mkdir(parents=True)
            for k in range(count):
                pixels = random.integers(low, low + 130, (8, 8)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"jane-{split}-{name}-{k}.png")
                found.append((folder / f"jane-{split}-{name}-{k}.png", pixels))
    return found


def forms(pixels: np.ndarray) -> list[bytes]:
    """How a picture may stand in a file."""
    rows = pixels.tolist()
    drawn = png(rows)
    assert drawn is not None
    scaled = pixels.astype(np.float32) / 255
    return [
        *(pixels[:2].tobytes(), scaled[0].tobytes(), (scaled[0] * 255).tobytes()),
        *(json.dumps(rows[0]).encode(), ", ".join(map(str, rows[0])).encode()),
        *(base64.b64encode(drawn), base64.b64encode(pixels.tobytes())[:60]),
    ]


def test_no_picture_and_no_name_of_one_is_in_any_file_that_may_be_published(tmp_path):
    found = pictures(tmp_path / "all", np.random.default_rng(1))
    own = {"size": 8, "channels": 1, "classes": ["dark", "light"]}
    recipe = Recipe(data=str(tmp_path / "all"), data_settings=own, **SETTINGS)
    run = train(recipe, tmp_path / "run")
    files = published(run)
    assert not run.predictions_path.exists()
    for name, data in files.items():
        assert b"jane" not in data, name
        assert b"<img" not in data, name
        assert b"data:image" not in data, name
        for path, pixels in found:
            assert path.read_bytes() not in data, name
            assert not any(form in data for form in forms(pixels)), name


def test_pictures_that_the_recipe_calls_public_are_shown_and_would_have_been_found(tmp_path):
    found = pictures(tmp_path / "all", np.random.default_rng(1))
    own = {"size": 8, "channels": 1, "classes": ["dark", "light"]}
    recipe = Recipe(data=str(tmp_path / "all"), data_settings=own, test_is_public=True, **SETTINGS)
    run = train(recipe, tmp_path / "run")
    files = published(run)
    mistakes = json.loads(files["predictions.json"])["mistakes"]
    assert run.summary()["accuracy"] < 1
    assert mistakes
    tests = [pixels for path, pixels in found if "test" in path.parts]
    first = forms(tests[mistakes[0]["record"] - 1])  # records count from 1
    assert any(form in files["report-public.html"] for form in first)
    assert "Public test records with the prediction" in files["report-public.html"].decode()


# ---- Classes that were read off the records


@pytest.mark.filterwarnings("ignore::psac.PrivacyWarning")
@pytest.mark.parametrize("kind", ["folders", "arrays"])
def test_classes_read_off_the_records_are_stated_wherever_the_run_is_shown(tmp_path, kind):
    if kind == "folders":
        pictures(tmp_path / "all", np.random.default_rng(1))
        own = {"size": 8, "channels": 1}
    else:
        own = {}
        (tmp_path / "all").mkdir()
        for split, count in (("train", 40), ("test", 10)):
            x = np.random.default_rng(1).normal(size=(count, 4)).astype(np.float32)
            np.savez(tmp_path / "all" / f"{split}.npz", x=x, y=np.arange(count) % 2)
    data = str(tmp_path / "all")
    with pytest.raises(ValueError, match="nothing states the classes"):
        train(Recipe(data=data, data_settings=own, **SETTINGS), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    recipe = Recipe(data=data, data_settings=own | {"unsafe": True}, **SETTINGS)
    run = train(recipe, tmp_path / "run")
    (sentence,) = run.summary()["unsafe"]
    assert sentence.startswith("The classes in the ")
    assert sentence.endswith("were read off the private records.")
    assert sentence in run.ledger().warnings
    assert sentence in run.model_facts()["warnings"]
    page = published(run)["report-public.html"].decode()
    assert page.count(sentence) >= 2  # the banner and the privacy card
    assert "This is proved" not in page
