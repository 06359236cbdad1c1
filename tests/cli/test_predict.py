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
    assert [(row["file"], row["record"]) for row in rows] == [("new.npz", "0"), ("new.npz", "1")]
    for row in rows:
        assert float(row["0"]) + float(row["1"]) == pytest.approx(1, abs=1e-4)
        assert row[row["prediction"]] == max(row["0"], row["1"], key=float)
    written = call("predict", "first", "new.npz", "--output", "out.csv")
    assert written.out == ""
    assert "2 records in out.csv" in written.message
    assert (run.parent / "out.csv").read_text() == shown.out


def test_a_folder_without_a_model_is_an_error(call, place):
    found = call("predict", place, "mine.toml")
    assert found.code == 1
    assert "there is no trained model" in found.message
