"""E2E NLG: the loader, BLEU, the loss of a text, and a run that goes on."""

from __future__ import annotations

import json
import math
import zipfile

import pytest
import torch
import torch.nn.functional as F

import psac
from paper.generation import e2e, model, study
from paper.generation.bleu import bleu
from paper.generation.e2e import Example
from psac.app.text.tokens import Tokens, tokenizer_in
from tests.app.text.small import model_folder

pytestmark = [
    pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning"),
    pytest.mark.filterwarnings("ignore::psac.PrivacyWarning"),
]
PAIRS = [Example("film good", "the film is good"), Example("plot bad", "the plot was very bad")]


@pytest.fixture
def tokens(tmp_path) -> Tokens:
    return Tokens(tokenizer_in(model_folder(tmp_path / "weights")), (8, 16))


def archive(path):
    rows = "mr,ref\nfilm[good],the film is good\nfilm[good],a fine film\n"
    with zipfile.ZipFile(path, "w") as file:
        for name in e2e.TABLES.values():
            file.writestr(f"e2e-dataset/{name}", "\ufeff" + rows)
    return path


def test_pairs_are_read_as_they_are_and_grouped_by_their_facts(tmp_path):
    pairs = e2e.examples(archive(tmp_path / "e2e.zip"), "train")
    assert pairs == [
        Example("film[good]", "the film is good"),
        Example("film[good]", "a fine film"),
    ]
    assert e2e.references(pairs) == {"film[good]": ["the film is good", "a fine film"]}


def test_another_archive_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not the published"):
        e2e.checked(archive(tmp_path / "e2e.zip"))
    with pytest.raises(FileNotFoundError, match="--data"):
        e2e.checked(tmp_path / "none.zip")


def test_bleu_is_the_one_that_is_counted_by_hand():
    # 5 words: 1-grams 4 of 5, 2-grams 3 of 4, 3-grams 2 of 3, 4-grams 1 of 2
    value = bleu(["the film is good today"], [["the film is good now", "a film"]])
    assert value == pytest.approx((4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    # clipped counts, and a penalty for being short
    assert bleu(["the the the the"], [["the film is very good"]]) == 0.0
    short = bleu(["the film is good"], [["the film is good and very warm"]])
    assert short == pytest.approx(math.exp(1 - 7 / 4))


def test_the_loss_is_over_the_text_and_not_over_the_facts(tokens):
    torch.manual_seed(0)
    network = model.language_model(30, length=16, width=8, layers=1, heads=2)
    rows = model.encoded(PAIRS, tokens)
    sums, counts = model.losses(network, rows, tokens)
    for row, pair, total, count in zip(rows.long(), PAIRS, sums, counts, strict=True):
        length = len(tokens.tokenizer(pair.text)["input_ids"]) - 1  # the words and the end
        first = len(tokens.tokenizer(pair.facts)["input_ids"])
        logits = network(input_ids=row[None, : first + length]).logits[0]
        expected = F.cross_entropy(
            logits[first - 1 : -1], row[first : first + length], reduction="sum"
        )
        assert int(count) == length
        torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)
    mean = float(sums.detach().sum() / counts.sum())
    assert model.perplexity(network, rows, tokens, 1) == pytest.approx(math.exp(mean), rel=1e-4)


@pytest.mark.parametrize("epsilon", [8.0, None])
def test_a_run_learns_leaves_a_result_and_goes_on(tmp_path, tokens, monkeypatch, epsilon):
    monkeypatch.setattr(study, "folder_of", lambda name: tmp_path / "weights")
    monkeypatch.setattr(study, "examples", lambda path, split: PAIRS * 20)
    small = {"batch_size": 10, "epochs": 5, "learning_rate": 0.03, "width": 16, "layers": 1}
    settings = study.Settings(
        epsilon=epsilon, delta=1e-3, heads=2, lengths=(8, 16), save_seconds=0.0, **small
    )
    whole = json.loads(study.run(tmp_path, settings, tmp_path / "a", tmp_path / "x").read_text())
    assert whole["tuned"] is False
    assert whole["steps"] == 20
    assert (whole["epsilon"] is None) == (epsilon is None)
    assert whole["perplexity"] < 25
    step, calls = psac.Private.step, []

    def stopped(*arguments):
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(psac.Private, "step", stopped)
    with pytest.raises(KeyboardInterrupt):
        study.run(tmp_path, settings, tmp_path / "b", tmp_path / "y")
    monkeypatch.setattr(psac.Private, "step", step)
    again = json.loads(study.run(tmp_path, settings, tmp_path / "b", tmp_path / "y").read_text())
    assert again["perplexity"] == whole["perplexity"]
