"""Predictions: of the kinds of files that a run can be trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from psac.app.data import TensorRecords
from psac.app.reporting import report
from psac.app.training import Recipe, Run, train
from psac.app.training.prediction import predictions
from psac.app.training.run import RunError

SETTINGS = {"noise_multiplier": 4.0, "batch_size": 4, "epochs": 0.5, "learning_rate": 0.5}


def trained(tmp_path, data, **settings) -> Run:
    recipe = Recipe(
        data=str(data), model="linear", validation_fraction=0.4, **{**SETTINGS, **settings}
    )
    return train(recipe, tmp_path / "run")


@pytest.fixture
def pictures(tmp_path) -> Run:
    for name, level in (("dark", 40), ("light", 200)):
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True)
        for k in range(10):
            Image.new("L", (10, 8), level + k).save(folder / f"{k}.png")
    return trained(
        tmp_path,
        tmp_path / "pictures",
        data_settings={"size": 6, "channels": 1, "classes": ["dark", "light"]},
    )


def test_pictures_are_read_as_the_training_data_were(pictures, tmp_path):
    [row] = predictions(pictures, [tmp_path / "pictures" / "dark" / "3.png"])
    scores = pictures.model()(torch.full((1, 1, 6, 6), 43 / 255)).softmax(1)[0]
    assert list(row.probabilities) == ["dark", "light"]
    assert list(row.probabilities.values()) == pytest.approx(scores.tolist(), abs=1e-6)
    assert sum(row.probabilities.values()) == pytest.approx(1)
    assert row.labels == (("dark", "light")[int(scores.argmax())],)


def test_a_folder_stands_for_its_pictures(pictures, tmp_path):
    found = list(predictions(pictures, [tmp_path / "pictures"]))
    assert len(found) == 20
    assert [row.file.name for row in found[:2]] == ["0.png", "1.png"]


def test_arrays_need_no_labels(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    np.savez(tmp_path / "all.npz", x=x, y=np.arange(30) % 3)
    run = trained(tmp_path, tmp_path / "all.npz", data_settings={"classes": ["0", "1", "2"]})
    np.savez(tmp_path / "new.npz", x=x[:5])
    found = list(predictions(run, [tmp_path / "new.npz"]))
    assert [row.record for row in found] == [1, 2, 3, 4, 5]
    expected = run.model()(torch.from_numpy(x[:5])).softmax(1)
    assert [list(row.probabilities.values()) for row in found] == [
        pytest.approx(row.tolist()) for row in expected
    ]


TABLE = "age,work,income\n" + "".join(
    f"{20 + k},{('farm', 'shop')[k % 2]},{('low', 'high')[k % 3 == 0]}\n" for k in range(30)
)
COLUMNS = {
    "label": "income",
    "classes": ["high", "low"],
    "ranges": {"age": [0, 100]},
    "categories": {"work": ["farm", "shop", "none"]},
}


@pytest.mark.parametrize("new", ["age,work\n50,shop\n70,none\n", "age,work,income\n50,shop,low\n"])
def test_columns_have_the_ranges_and_categories_of_the_run(tmp_path, new):
    (tmp_path / "all.csv").write_text(TABLE)
    run = trained(tmp_path, tmp_path / "all.csv", data_settings=COLUMNS)
    (tmp_path / "new.csv").write_text(new)
    row = next(iter(predictions(run, [tmp_path / "new.csv"])))
    expected = run.model()(torch.tensor([[0.5, 0.0, 1.0, 0.0]])).softmax(1)[0]
    assert list(row.probabilities) == ["high", "low"]
    assert list(row.probabilities.values()) == pytest.approx(expected.tolist())


@pytest.fixture
def table(tmp_path) -> Run:
    (tmp_path / "all.csv").write_text(TABLE)
    return trained(tmp_path, tmp_path / "all.csv", data_settings=COLUMNS)


def answers(run: Run, file: Path, content: str) -> list[dict[str, float]]:
    file.write_text(content)
    return [row.probabilities for row in predictions(run, [file])]


@pytest.mark.parametrize("moved", ["work,age\nshop,50\n", "work,income,age\nshop,low,50\n"])
def test_columns_are_found_by_their_names_in_any_order(table, tmp_path, moved):
    usual = answers(table, tmp_path / "new.csv", "age,work\n50,shop\n")
    assert answers(table, tmp_path / "new.csv", moved) == usual


@pytest.mark.parametrize(
    "content, message",
    [
        ("age\n50\n", r"new\.csv .*'work' missing\. Expected, in any order: age, work"),
        ("years,work\n50,shop\n", "'age' missing"),
        ("age,work\n50,shop\nabc,shop\n", r"(?s)cells that cannot be used.*age.*abc"),
    ],
)
def test_columns_that_were_not_learned_are_refused_by_their_names(
    table, tmp_path, content, message
):
    with pytest.raises(ValueError, match=message):
        answers(table, tmp_path / "new.csv", content)


def test_a_table_without_records_has_no_predictions(table, tmp_path):
    assert answers(table, tmp_path / "new.csv", "work,age\n") == []
    with pytest.raises(FileNotFoundError, match=r"new\.csv is empty"):
        answers(table, tmp_path / "new.csv", "")


def test_columns_that_were_not_learned_are_carried_through(table, tmp_path):
    (tmp_path / "new.csv").write_text("id,age,work,income\np1,50,shop,low\np2,60,farm,\n")
    first, second = predictions(table, [tmp_path / "new.csv"])
    assert first.others == {"id": "p1", "income": "low"}
    assert second.others == {"id": "p2", "income": ""}
    assert (first.record, second.record) == (1, 2)


def test_unknown_categories_are_counted_and_count_as_none(table, tmp_path):
    with pytest.warns(UserWarning, match=r"some of 3 records have .* \(2 in 'work'\)"):
        found = answers(table, tmp_path / "new.csv", "age,work\n50,pilot\n50,shop\n50,clerk\n")
    assert found[0] == found[2] != found[1]
    expected = table.model()(torch.tensor([[0.5, 0.0, 0.0, 0.0]])).softmax(1)[0]
    assert list(found[0].values()) == pytest.approx(expected.tolist())


def test_a_model_that_keeps_no_columns_reads_no_table(table, tmp_path):
    facts = table.model_facts() | {"columns": None}
    table.write_model(table.model(), facts)
    with pytest.raises(ValueError, match="does not say how columns become inputs"):
        answers(table, tmp_path / "new.csv", "age,work\n50,shop\n")


def test_a_model_that_is_not_whole_is_named_and_a_resumed_run_writes_it_anew(table, tmp_path):
    usual = answers(table, tmp_path / "new.csv", "age,work\n50,shop\n")
    content, spent = table.model_path.read_bytes(), table.ledger().steps
    for broken in (content[:-40], content[:20], b""):
        table.model_path.write_bytes(broken)
        with pytest.raises(RunError, match=r"model\.safetensors is not a complete model"):
            answers(table, tmp_path / "new.csv", "age,work\n50,shop\n")
    save_file({"weight": torch.zeros(1)}, table.model_path)
    with pytest.raises(RunError, match=r"model\.safetensors is not a complete model of a run"):
        table.model_facts()
    table.summary_path.unlink()
    train(table.recipe(), table.folder, resume=True)
    assert answers(table, tmp_path / "new.csv", "age,work\n50,shop\n") == usual
    assert table.ledger().steps == spent


def test_a_record_may_have_several_labels(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    records = TensorRecords(x, (x > 0).float(), name="signs", classes=("a", "b", "c"))
    monkeypatch.setattr("psac.app.training.splits._load", lambda recipe, split, **_: records)
    longer = {"batch_size": 20, "epochs": 20, "noise_multiplier": 2.5, "learning_rate": 2.0}
    run = trained(tmp_path, "digits", **longer)
    summary = run.summary()
    assert summary["accuracy"] > 0.8
    assert len(summary["per_class_accuracy"]) == 3
    assert summary["confusion_matrix"] is None
    assert report(run.folder).exists()
    np.savez(tmp_path / "new.npz", x=np.array([[3, -3, 3], [-3, -3, -3]], np.float32))
    several, none = predictions(run, [tmp_path / "new.npz"])
    assert several.labels == ("a", "c")
    assert none.labels == ()
    assert max(none.probabilities.values()) < 0.5


def test_what_does_not_fit_is_refused(pictures, tmp_path):
    np.savez(tmp_path / "wide.npz", x=np.zeros((2, 7), np.float32))
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    for name, error, message in (
        ("wide.npz", ValueError, r"\[7\], but the model takes \[1, 6, 6\]"),
        ("notes.txt", ValueError, "cannot be read"),
        ("table.csv", ValueError, "is a table, but the model, trained on"),
        ("empty", FileNotFoundError, "contains no images"),
        ("nothing.png", FileNotFoundError, "does not exist"),
    ):
        with pytest.raises(error, match=message):
            list(predictions(pictures, [tmp_path / name]))
    with pytest.raises(RunError, match="no trained model"):
        list(predictions(Run(tmp_path), []))
    with pytest.raises(RunError, match=r"nowhere does not exist"):
        list(predictions(Run(tmp_path / "nowhere"), []))
