"""A published page does not depend on what was computed from private records without noise."""

from __future__ import annotations

import json
import shutil

import pytest

from psac.reporting.runs import read
from tests.reporting.pages import page_of, public_part, words_of

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
    assert "Inside the training" not in page
    assert "Gradient norms" not in page
    shown = words_of(page_of(other, tmp_path))
    assert "7,354" in shown  # the test would see it


@pytest.mark.parametrize("name", ["secure", "held-out"])
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
    assert accuracy in words_of(page)
    assert accuracy not in words_of(public_part(page))
    published = words_of(page_of(runs["held-out"], tmp_path, publish=True))
    assert accuracy not in published
    assert "evaluated on held-out training records" in published
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
    run = read(runs["secure"]).published()
    assert all(set(line) <= {"kind", "step", "epoch", "epsilon", "scale", "private"}
               for line in run.steps)  # fmt: skip
    assert run.seconds is None
    assert run.accuracy is not None
    assert "data_root" not in run.recipe
    hidden = read(runs["held-out"]).published()
    assert hidden.accuracy is None
    assert not hidden.mistakes
