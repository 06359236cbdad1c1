"""A published page does not depend on what was computed from private records without noise."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from psac.app.reporting.publishing import files_to_publish, published
from psac.app.reporting.snapshot import read
from tests.app.reporting.pages import page_of, public_part, words_of

PRIVATE = ("loss", "samples", "norms", "weights", "histogram", "seconds", "samples_per_second")
SENTINEL = 7354.25  # found in a page, it can only have come from the lines that it was put in


def tampered(folder, target, change):
    """A copy of the folder in which every private value went through `change`."""
    copy = shutil.copytree(folder, target)
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for key in PRIVATE:
            if key in line and (line["kind"] == "step" or key == "seconds"):
                line[key] = change(line[key])
        if line["kind"] == "step":
            line["a_key_of_the_future"] = change(0.5)
        line["time"] = change(1.0)
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if (copy / "summary.json").exists():
        summary = json.loads((copy / "summary.json").read_text())
        summary |= {"seconds": change(1.0), "training_accuracy": change(0.9)}
        (copy / "summary.json").write_text(json.dumps(summary))
    return copy


def sentinel(value):
    """The same shape with the sentinel for every number."""
    if isinstance(value, dict):
        return {key: v if key == "log10_norm_edges" else sentinel(v) for key, v in value.items()}
    return [sentinel(item) for item in value] if isinstance(value, list) else SENTINEL


@pytest.mark.parametrize("name", ["secure", "seeded", "killed", "held-out"])
def test_a_published_page_is_the_same_whatever_the_private_values(runs, tmp_path, name):
    honest = page_of(runs[name], tmp_path, publish=True)
    other = tampered(runs[name], tmp_path / "x" / name, sentinel)
    assert page_of(other, tmp_path, publish=True) == honest


@pytest.mark.parametrize("name", ["secure", "killed"])
def test_no_private_number_is_in_a_published_page(runs, tmp_path, name):
    other = tampered(runs[name], tmp_path / "x" / name, sentinel)
    page = page_of(other, tmp_path, publish=True)
    assert "7354" not in page
    assert "7,354" not in page
    assert "Training diagnostics" not in page
    assert "Gradient norms" not in page
    shown = words_of(page_of(other, tmp_path))
    assert "7,354" in shown  # the test would see it


@pytest.mark.parametrize("name", ["secure", "killed"])
def test_private_values_stay_in_the_marked_section(runs, tmp_path, name):
    honest = page_of(runs[name], tmp_path)
    other = page_of(tampered(runs[name], tmp_path / "x" / name, sentinel), tmp_path)
    assert other != honest
    assert public_part(other) == public_part(honest)


def test_the_marked_section_says_so(runs, tmp_path):
    words = words_of(page_of(runs["secure"], tmp_path))
    assert words.index("Not private, do not publish") < words.index("Training loss")


def test_results_on_held_out_training_records_are_private(runs, tmp_path):
    summary = json.loads((runs["held-out"] / "summary.json").read_text())
    accuracy = f"{100 * summary['accuracy']:.1f} %"
    page = page_of(runs["held-out"], tmp_path)
    assert f"Accuracy {accuracy} on 10,000 held-out private records" in words_of(page)
    assert "not private: do not publish" in words_of(page)
    published = words_of(page_of(runs["held-out"], tmp_path, publish=True))
    assert accuracy not in published
    assert "evaluated on held-out private records" in published
    assert "Confusion matrix" not in published


def test_examples_of_held_out_records_are_private(runs, tmp_path):
    own = shutil.copytree(runs["held-out"], tmp_path / "own")
    shutil.copy(runs["secure"] / "predictions.json", own)
    assert "Examples of mistakes" in page_of(own, tmp_path)
    assert "Examples of mistakes" not in page_of(own, tmp_path, publish=True)


def test_a_summary_that_is_marked_as_not_private_is_private(runs, tmp_path):
    own = shutil.copytree(runs["secure"], tmp_path / "own")
    summary = json.loads((own / "summary.json").read_text()) | {"private": False}
    (own / "summary.json").write_text(json.dumps(summary))
    words = words_of(page_of(own, tmp_path, publish=True))
    assert f"{100 * summary['accuracy']:.1f} %" not in words
    assert "Accuracy of each class" not in words


def test_a_published_comparison_is_the_same_whatever_the_private_values(runs, tmp_path):
    names = ["secure", "again", "held-out", "killed"]
    honest = page_of([runs[name] for name in names], tmp_path, publish=True)
    other = [tampered(runs[name], tmp_path / "x" / name, sentinel) for name in names]
    assert page_of(other, tmp_path, publish=True) == honest
    assert "7,354" in words_of(page_of(other, tmp_path))


def test_a_published_run_holds_only_what_is_listed(runs):
    run = published(read(runs["secure"]))
    assert all(set(line) <= {"kind", "step", "epoch", "epsilon", "scale", "private"}
               for line in run.steps)  # fmt: skip
    assert run.seconds is None
    assert run.accuracy is not None
    assert "data_root" not in run.recipe
    hidden = published(read(runs["held-out"]))
    assert hidden.accuracy is None
    assert not hidden.mistakes


# ---- What is shown was allowed; what nobody called public is private


def changed(folder, target, file, change):
    """A copy of the folder with one of its JSON files changed."""
    copy = shutil.copytree(folder, target)
    content = json.loads((copy / file).read_text())
    change(content)
    (copy / file).write_text(json.dumps(content))
    return copy


def without_mark(folder, target):
    """A copy of the folder in which nothing says that the records were public."""
    copy = shutil.copytree(folder, target)
    for name in ("metrics.jsonl", "summary.json", "predictions.json"):
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace('"public": true', '"of_the_future": 1'))
    return copy


def test_results_that_nobody_called_public_are_not_published(runs, tmp_path):
    shown = words_of(page_of(runs["secure"], tmp_path, publish=True))
    own = without_mark(runs["secure"], tmp_path / "own")
    page = page_of(own, tmp_path, publish=True)
    words = words_of(page)
    for sign in ("Confusion matrix", "Examples of mistakes", "Sneaker", "Evaluation loss"):
        assert sign in shown
        assert sign not in words
    assert "<img" not in page
    assert "public test" not in words
    assert "Test records are NOT covered" in words
    assert published(read(own)).accuracy is None


def test_nor_is_a_page_published_with_a_single_mistake_of_them(runs, tmp_path):
    own = changed(runs["secure"], tmp_path / "own", "predictions.json",
                  lambda found: found.pop("public"))  # fmt: skip
    page = page_of(own, tmp_path, publish=True)
    assert "Confusion matrix" in page
    assert "<img" not in page


def test_names_of_classes_that_were_read_off_private_records_are_not_published(runs, tmp_path):
    for unsafe in (["The classes were read off the records."], None):
        own = changed(runs["secure"], tmp_path / str(unsafe), "summary.json",
                      lambda found, unsafe=unsafe: found.update(unsafe=unsafe))  # fmt: skip
        assert "Sneaker" not in page_of(own, tmp_path, publish=True)
        assert "Sneaker" in page_of(own, tmp_path)


def test_every_key_that_a_later_version_may_write_is_left_out(runs, tmp_path):
    own = shutil.copytree(runs["secure"], tmp_path / "own")
    for name in ("environment.json", "summary.json"):
        content = json.loads((own / name).read_text()) | {"found": {"deep": "SENTINEL"}}
        (own / name).write_text(json.dumps(content))
    lines = [json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()]
    lines.append({"kind": "warning", "step": 1, "text": "SENTINEL"})
    text = "".join(json.dumps(line | {"found": "SENTINEL"}) + "\n" for line in lines)
    (own / "metrics.jsonl").write_text(text)
    recipe = (own / "recipe.toml").read_text()
    (own / "recipe.toml").write_text(f'{recipe}found = "SENTINEL"\n[more]\ndeep = "SENTINEL"\n')
    assert "SENTINEL" not in page_of(own, tmp_path, publish=True)
    assert "SENTINEL" in page_of(own, tmp_path)


def test_folders_and_the_settings_of_own_data_are_not_published(runs, tmp_path):
    own = shutil.copytree(runs["secure"], tmp_path / "own")
    recipe = (own / "recipe.toml").read_text().replace('"fashion-mnist"', '"ward/jane/all.csv"')
    extra = '[data_settings]\nlabel = "back"\nclasses = ["SENTINEL"]\n'
    (own / "recipe.toml").write_text(recipe + extra)
    environment = json.loads((own / "environment.json").read_text())
    environment["command"] = "psac train --data ward/jane/all.csv --data-settings classes=SENTINEL"
    (own / "environment.json").write_text(json.dumps(environment))
    page = page_of(own, tmp_path, publish=True)
    assert "SENTINEL" not in page
    assert "jane" not in page
    assert "cnn on all.csv" in page


def test_files_that_name_folders_or_private_results_stay_with_the_data(runs):
    always = ["ledger.json", "model.safetensors"]
    for name, folder in runs.items():
        found = files_to_publish(folder)
        there = [file for file in always if (folder / file).exists()]
        of_results = [file for file in found if file in ("summary.json", "predictions.json")]
        assert found == [*there, *of_results], name
        assert not of_results or read(folder).on_public_records, name
    assert "summary.json" in files_to_publish(runs["secure"])
    assert "summary.json" not in files_to_publish(runs["held-out"])


def test_a_published_command_names_no_folder_of_its_user(runs, tmp_path):
    own = shutil.copytree(runs["secure"], tmp_path / "own")
    recipe = re.sub(r"data_root = .*\n", "", (own / "recipe.toml").read_text())
    (own / "recipe.toml").write_text(recipe)
    environment = json.loads((own / "environment.json").read_text())
    words = "psac train mnist --run '/home/jane doe/first' --model-settings=~jane/x.toml --r 0.1"
    (own / "environment.json").write_text(json.dumps(environment | {"command": words}))
    page = page_of(own, tmp_path, publish=True)
    assert "jane" not in page
    assert "psac train mnist --run first --model-settings=x.toml --r 0.1" in words_of(page)
    assert "jane" in page_of(own, tmp_path)
    environment["command"] = "psac train --run '/home/jane"
    (own / "environment.json").write_text(json.dumps(environment))
    assert "jane" not in page_of(own, tmp_path, publish=True)


# ---- Warnings


def with_warnings(folder, target, *sentences):
    copy = shutil.copytree(folder, target)
    ledger = json.loads((copy / "ledger.json").read_text()) | {"warnings": list(sentences)}
    (copy / "ledger.json").write_text(json.dumps(ledger))
    return copy


@pytest.mark.parametrize("publish", [False, True])
def test_a_run_that_psac_warned_of_is_never_called_proved(runs, tmp_path, publish):
    sentence = "The categories of a column were read off the records."
    words = words_of(page_of(runs["secure"], tmp_path, publish=publish))
    assert "proved for every attack" in words
    assert "Warnings None from psac." in words
    own = with_warnings(runs["secure"], tmp_path / "own", sentence)
    page = page_of(own, tmp_path, publish=publish)
    words = words_of(page)
    assert "proved" not in words
    assert "Report of a training run" in words
    assert words.count(sentence) == 2  # at the top, and on the card
    assert "does not cover what psac warned of" in words
    assert 'class="verdict good"' not in page


def test_a_warning_in_full_is_for_the_owner_and_others_learn_that_there_was_one(runs, tmp_path):
    own = shutil.copytree(runs["secure"], tmp_path / "own")
    line = {"kind": "warning", "step": 1, "text": "ward/jane.csv: 'unique' was read off."}
    with open(own / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    assert "'unique' was read off." in words_of(page_of(own, tmp_path))
    published = words_of(page_of(own, tmp_path, publish=True))
    assert "unique" not in published
    assert "psac warned about privacy 1 time" in published
    assert "proved" not in published


def test_a_comparison_names_the_runs_that_were_warned_of(runs, tmp_path):
    own = with_warnings(runs["secure"], tmp_path / "warned", "Something.")
    words = words_of(page_of([own, runs["again"]], tmp_path, publish=True))
    assert "psac warned about privacy. warned:" in words
