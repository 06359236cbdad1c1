"""Runs on text: training, resuming, predictions, the page, and the command line."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from psac.app.reporting import report
from psac.app.reporting.publishing import published
from psac.app.reporting.snapshot import read
from psac.app.text.pretrained import PRETRAINED
from psac.app.training import Interrupted, Recipe, Run, RunError, train
from psac.app.training.assembly import autocast, model_of, private_of
from psac.app.training.evaluation import loss_of
from psac.app.training.prediction import predictions
from psac.app.training.splits import load_splits
from tests.app.text.small import reviews, sst2_folder

pytestmark = [
    pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning"),
    pytest.mark.filterwarnings("ignore:epsilon is"),
]


def recipe(weights: Path, folder: Path, **changes) -> Recipe:
    own = changes.pop("model_settings", {})
    usual = {
        **{"data": "sst2", "data_root": str(folder), "test_is_public": True, "model": "minilm"},
        **{"noise_multiplier": 0.6, "delta": 1e-3, "batch_size": 30, "epochs": 2},
        **{"physical_batch_size": 16, "optimizer": "adam", "learning_rate": 0.02, "seed": 0},
        "model_settings": {"weights": str(weights), "lengths": [8, 16], **own},
    }
    return Recipe(**(usual | changes))


@pytest.fixture(scope="module", params=[None, 4], ids=["all weights", "lora"])
def run(request, tmp_path_factory, weights) -> Run:
    """With little noise, on records that are public here."""
    more = {} if request.param is None else {"lora": request.param}
    quiet = {"noise_multiplier": 0.1, "learning_rate": 0.03, "epochs": 10}
    folder = tmp_path_factory.mktemp("runs")
    data = sst2_folder(folder / "data", train=300)
    return train(recipe(weights, data, model_settings=more, **quiet), folder / "run")


def test_a_language_model_learns_what_decides(run):
    summary = run.summary()
    assert summary["isolation"] == "by construction (vmap)"
    assert summary["accuracy"] > 0.75
    assert summary["num_records"] == 300


def test_a_run_on_text_goes_on_as_if_it_had_not_been_stopped(tmp_path, weights, sst2):
    class Stop:
        def started(self, info): ...
        def evaluated(self, info): ...
        def ended(self, info): ...

        def stepped(self, info):
            if info["step"] == 5:
                os.kill(os.getpid(), signal.SIGINT)

    made = recipe(weights, sst2, model_settings={"lora": 4}, precision="bfloat16")
    whole = train(made, tmp_path / "whole")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored
    try:
        with pytest.raises(Interrupted):
            train(made, tmp_path / "stopped", observer=Stop())
    finally:
        signal.signal(signal.SIGINT, before)
    again = train(made, tmp_path / "stopped", resume=True)
    for key, value in whole.model().state_dict().items():
        assert torch.equal(value, again.model().state_dict()[key]), key
    assert again.summary()["accuracy"] == whole.summary()["accuracy"]


def test_physical_batches_do_not_change_the_result(tmp_path, weights, sst2):
    runs = [
        train(recipe(weights, sst2, physical_batch_size=size), tmp_path / str(size))
        for size in (4, 64)
    ]
    first, second = (each.model().state_dict() for each in runs)
    for key in first:
        torch.testing.assert_close(first[key], second[key], rtol=1e-3, atol=1e-4)


def test_a_model_predicts_for_lines_and_for_a_column(run, tmp_path):
    texts = reviews(30, seed=5)
    (tmp_path / "new.txt").write_text("\n".join(text for text, _ in texts) + "\n")
    with open(tmp_path / "new.csv", "w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *((k, t) for k, (t, _) in enumerate(texts))])
    of_lines = list(predictions(run, [tmp_path / "new.txt"]))
    of_table = list(predictions(run, [tmp_path / "new.csv"]))
    assert [row.probabilities for row in of_lines] == [row.probabilities for row in of_table]
    (tmp_path / "odd.txt").write_text("good\u2028film\r\nbad\r\n", encoding="utf-8")
    assert len(list(predictions(run, [tmp_path / "odd.txt"]))) == 2
    assert [row.others for row in of_table[:2]] == [{"id": "0"}, {"id": "1"}]
    names = ("negative", "positive")
    right = sum(
        row.labels == (names[label],) for row, (_, label) in zip(of_lines, texts, strict=True)
    )
    assert right > 20
    alone = run.model()
    with torch.no_grad():
        scores = alone(alone.tokens([texts[7][0]])).softmax(1)[0]
    assert of_lines[7].probabilities["positive"] == pytest.approx(float(scores[1]), abs=1e-5)


def test_files_without_texts_are_refused(run, tmp_path):
    (tmp_path / "other.csv").write_text("review\ngood\n")
    with pytest.raises(ValueError, match="no column text, in which the model expects text"):
        list(predictions(run, [tmp_path / "other.csv"]))
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ValueError, match="the model takes text"):
        list(predictions(run, [tmp_path / "a.png"]))


def test_the_page_shows_the_texts_of_public_mistakes(run):
    page, sst2 = report(run.folder).read_text(), run.folder.parent / "data"
    mistakes = json.loads(run.predictions_path.read_text())["mistakes"]
    texts = [line.split(" \t")[0] for line in (sst2 / "dev.tsv").read_text().splitlines()[1:]]
    for mistake in mistakes:
        assert mistake["text"].strip() == texts[mistake["record"] - 1]
        assert mistake["text"].strip() in page


@pytest.mark.parametrize("changes", [{"test_is_public": False}, {"validation_fraction": 0.3}])
def test_no_text_of_a_private_record_is_in_the_folder(tmp_path, weights, sst2, changes):
    made = recipe(weights, sst2, epochs=0.5, **changes)
    finished = train(made, tmp_path / "run")
    report(finished.folder)
    assert not finished.predictions_path.exists()
    rows = [line.split(" \t")[0] for line in (sst2 / "train.tsv").read_text().splitlines()[1:]]
    rows += [line.split(" \t")[0] for line in (sst2 / "dev.tsv").read_text().splitlines()[1:]]
    written = "".join(
        path.read_bytes().decode("latin-1") for path in finished.folder.rglob("*") if path.is_file()
    )
    assert not [row for row in rows if len(row) > 12 and row in written]


def test_the_trained_model_is_not_built_from_damaged_files(tmp_path, weights, sst2):
    finished = train(recipe(weights, sst2, epochs=0.5), tmp_path / "run")
    content = finished.model_path.read_bytes()
    finished.model_path.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="not a complete model"):
        finished.model()
    finished.model_path.write_bytes(content)
    (finished.text_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        finished.model()


def table(path: Path, rows: list[tuple[str, int]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "note", "verdict"])
        writer.writerows((30 + k % 9, text, ("no", "yes")[label]) for k, (text, label) in rows)


@pytest.fixture
def own(tmp_path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    table(folder / "train.csv", list(enumerate(reviews(80, seed=1))))
    table(folder / "test.csv", list(enumerate(reviews(20, seed=2))))
    return folder


def test_a_column_of_text_of_your_own_table_is_trained_on(own, tmp_path, weights):
    settings = {"label": "verdict", "text": "note", "classes": ["no", "yes"]}
    made = recipe(weights, own, data=str(own), data_root=None, data_settings=settings)
    splits = load_splits(made)
    assert splits.classes == ("no", "yes")
    assert splits.training.texts == [text for text, _ in reviews(80, seed=1)]
    finished = train(made, tmp_path / "run")
    (row, *_) = predictions(finished, [own / "test.csv"])
    assert row.others == {"age": "30", "verdict": ("no", "yes")[reviews(20, seed=2)[0][1]]}


def test_text_and_numbers_need_models_of_their_kind(own, tmp_path, weights, sst2):
    with pytest.raises(ValueError, match=r"is text, but the model takes numbers.*minilm"):
        load_splits(dataclasses.replace(recipe(weights, sst2), model="mlp", model_settings={}))
    settings = {
        **{"label": "verdict", "classes": ["no", "yes"], "ranges": {"age": [0, 99]}},
        "ignore": ["note"],
    }
    with pytest.raises(ValueError, match="is numbers, but the model takes text"):
        load_splits(recipe(weights, own, data=str(own), data_root=None, data_settings=settings))


def test_images_and_texts_do_not_share_settings(weights, sst2):
    with pytest.raises(ValueError, match="copies is 2, but model 'minilm' takes text"):
        recipe(weights, sst2, copies=2, shift=1)
    with pytest.raises(ValueError, match=r"precision 'half' is unknown. Known: bfloat16, float32"):
        recipe(weights, sst2, precision="half")


def test_the_command_line_trains_on_text_and_predicts(own, tmp_path, weights, capsys, monkeypatch):
    from psac.app.cli.app import main

    monkeypatch.chdir(tmp_path)
    options = {
        **{"--data": own, "--label": "verdict", "--text": "note", "--model": "minilm"},
        **{"--lora": 4, "--epsilon": 8, "--batch-size": 20, "--epochs": 1},
        **{"--learning-rate": 0.01, "--optimizer": "adam", "--run": "mine"},
    }
    words = ["train", *(str(word) for pair in options.items() for word in pair), "--quiet"]
    for setting in ("lengths=[8,16]", f"weights='{weights}'"):
        words += ["--model-settings", setting]
    words += ["--data-settings", "classes=['no', 'yes']"]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code, capsys.readouterr()
    assert Run("mine").recipe().model_settings["lora"] == 4
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["predict", "mine", str(own / "test.csv")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "file,record,age,verdict,prediction,no,yes"
    assert len(lines) == 21


def test_settings_that_are_not_given_are_those_of_the_recipe_for_data_and_model():
    from psac.app.cli.train import _by_options_alone

    by_lora = _by_options_alone({"data": "sst2", "model": "minilm", "model_settings": {"lora": 4}})
    assert by_lora.model_settings["lora"] == 4
    assert by_lora.batch_size == 1000
    whole = _by_options_alone({"data": "sst2", "model": "minilm", "epsilon": 8.0})
    assert "lora" not in whole.model_settings
    assert whole.epsilon == 8.0
    with pytest.raises(ValueError, match="--batch-size, --epochs, --learning-rate missing"):
        _by_options_alone({"data": "sst2", "model": "mpnet"})


def test_texts_are_padded_to_public_lengths_only(weights, sst2):
    made = recipe(weights, sst2, physical_batch_size=4)
    splits = load_splits(made)
    with private_of(made, splits, model_of(made, splits)) as private:
        shapes = []
        for inputs, labels in private.loader:
            shapes.append(inputs.shape[1])
            private.step(loss_of, (inputs, labels))
    assert set(shapes) == {8, 16}


def test_a_page_for_others_does_not_say_where_the_weights_lie(run, weights):
    page = report(run.folder, publish=True).read_text()
    assert "lengths" in page
    assert str(weights).encode() not in run.model_path.read_bytes()[:10_000]
    settings = {"data": "sst2", "model": "minilm", "model_settings": {"weights": "/my/place"}}
    typed = {"command": "psac train --model-settings weights=/my/place"}
    shown = published(dataclasses.replace(read(run.folder), recipe=settings, environment=typed))
    assert "weights=place" in shown.environment["command"]
    assert "/my/" not in str(shown)
    assert str(weights) not in page
    assert "NOT covered: what the weights were trained on before." in page
    assert PRETRAINED["minilm"].seen not in page  # whoever has other weights knows what they saw


def test_losses_are_computed_in_the_precision_of_the_recipe(weights, sst2):
    for precision, enabled in (("float32", False), ("bfloat16", True)):
        with autocast(recipe(weights, sst2, precision=precision), torch.device("cpu")):
            assert torch.is_autocast_enabled("cpu") == enabled
            product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == torch.bfloat16


def test_noise_does_not_depend_on_how_texts_are_grouped(tmp_path, weights, sst2):
    """A logical step is one release, however many lengths its records have."""
    finished = train(recipe(weights, sst2, epochs=1), tmp_path / "run")
    ledger = finished.ledger()
    assert ledger.steps == finished.summary()["planned_steps"] == 4
