"""`psac predict`: a CSV of classes and probabilities."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

SHORT = ("--epochs", "0.2", "--physical-batch-size", "64")


@pytest.fixture
def run(call, place):
    assert call("train", "mine.toml", *SHORT, "--run", "first").code == 0
    np.savez("new.npz", x=np.array([[-3] * 4, [5] * 4], np.float32))
    return place / "first"


def test_predictions_are_a_table_on_stdout_or_in_a_file(call, run):
    shown = call("predict", "first", "new.npz")
    assert shown.code == 0, shown.err
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert [(row["file"], row["record"]) for row in rows] == [("new.npz", "1"), ("new.npz", "2")]
    for row in rows:
        assert float(row["0"]) + float(row["1"]) == pytest.approx(1, abs=1e-4)
        assert row[row["prediction"]] == max(row["0"], row["1"], key=float)
    written = call("predict", "first", "new.npz", "--output", "out.csv")
    assert written.out == ""
    assert "2 predictions: out.csv" in written.message
    assert (run.parent / "out.csv").read_text() == shown.out


def test_a_file_that_is_there_is_not_overwritten_without_force(call, run):
    (run.parent / "out.csv").write_text("mine")
    refused = call("predict", "first", "new.npz", "--output", "out.csv")
    assert refused.code == 2
    assert (
        "out.csv already exists. Choose another --output, or overwrite it with --force."
        in refused.message
    )
    assert (run.parent / "out.csv").read_text() == "mine"
    assert call("predict", "first", "new.npz", "--output", "out.csv", "--force").code == 0
    assert (run.parent / "out.csv").read_text().startswith("file,record,prediction,0,1\nnew.npz,1,")


def test_answers_can_be_joined_by_the_columns_of_the_input(call, place):
    rows = "".join(f"{k},{20 + k},{('no', 'yes')[k % 2]}\n" for k in range(60))
    (place / "all.csv").write_text(f"id,age,back\n{rows}")
    (place / "own.toml").write_text(
        'data = "all.csv"\nvalidation_fraction = 0.2\nmodel = "linear"\nnoise_multiplier = 4.0\n'
        "batch_size = 8\nepochs = 0.5\nlearning_rate = 0.5\n[data_settings]\n"
        'label = "back"\nclasses = ["no", "yes"]\nignore = ["id"]\n'
        "[data_settings.ranges]\nage = [0, 100]\n"
    )
    assert call("train", "own.toml", "--quiet").code == 0
    (place / "new.csv").write_text("record,age,id\nx,30,p7\ny,44,p9\n")
    shown = call("predict", "runs/own", "new.csv")
    assert shown.code == 0, shown.err
    found = list(csv.DictReader(io.StringIO(shown.out)))
    assert [(row["record"], row["input record"], row["id"]) for row in found] == [
        ("1", "x", "p7"),
        ("2", "y", "p9"),
    ]


def test_a_folder_without_a_model_is_an_error(call, place):
    found = call("predict", place, "mine.toml")
    assert found.code == 1
    assert "has no trained model" in found.message
