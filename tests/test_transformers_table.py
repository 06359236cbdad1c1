"""Architectures of transformers train as the table says: the way, the paths, and exactly."""

from __future__ import annotations

import warnings

import pytest
import torch

from benchmarks import finetuning, finetuning_page, records, survey
from benchmarks.architectures import ARCHITECTURES, FAMILIES
from benchmarks.architectures.records import collate
from psac.gradients import Evaluator
from psac.gradients.vectorized.selfcheck import distance

pytest.importorskip("transformers")

FEW = 4
KEPT = finetuning.load(records.ROOT / "results" / "bench")
REPRESENTATIVE = (
    "ModernBertForSequenceClassification", "BertForQuestionAnswering", "GPT2LMHeadModel",
    "BloomForCausalLM", "OPTForCausalLM, LayerDrop", "GptOssForCausalLM",
    "MixtralForCausalLM, even routing", "Mamba2ForCausalLM", "Lfm2ForCausalLM",
    "T5ForConditionalGeneration", "ViTForImageClassification", "Wav2Vec2ForCTC",
    "VisionEncoderDecoderModel",
)  # fmt: skip
# Their code branches on values that are padding, length, or chance: no table of ways holds them.
BRANCHING = {name for name, row in KEPT["rows"].items() if row.get("paths", 1) > 1}


@pytest.fixture(autouse=True)
def on_one_thread():
    with survey.one_thread():
        yield


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_an_architecture_is_evaluated_for_all_records_at_once_and_exactly(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns of what it is asked to do
        model, data = ARCHITECTURES[name].build()
        batch, evaluator = collate(data[:FEW]), Evaluator(model)
        evaluation = evaluator(finetuning.own_loss, batch)
        assert evaluation.way == KEPT["rows"][name]["way"] == "vmap", evaluator.reasons
        assert not evaluation.paths or name in BRANCHING
        assert distance(evaluator.vectorized, finetuning.own_loss, batch) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_trains_as_the_table_says(name: str) -> None:
    row = finetuning.measure(ARCHITECTURES[name], seconds=0)
    assert row["way"] == KEPT["rows"][name]["way"], row.get("reason")
    if row["way"] == "vmap":
        assert row["distance"] < 1e-3
        assert row["steps"] == finetuning.STEPS


def test_there_are_many_architectures_of_every_family() -> None:
    assert len(ARCHITECTURES) == sum(map(len, FAMILIES.values())) >= 150  # no name twice
    assert all(len(lines) >= 10 for lines in FAMILIES.values())


def test_a_row_has_what_the_page_shows() -> None:
    row = finetuning.measure(ARCHITECTURES["GPT2LMHeadModel"], seconds=0)
    assert (row["way"], row["paths"], row["loops"]) == ("vmap", 1, [])
    assert row["distance"] < 1e-5
    assert row["ratio"] == pytest.approx(row["private_ms"] / row["ordinary_ms"], rel=0.01)


def test_a_refused_architecture_is_a_row_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(*_: object, **__: object) -> tuple:
        return torch.nn.Linear(2, 1).requires_grad_(False), [{"x": torch.zeros(2)}] * 20

    monkeypatch.setattr(finetuning.Architecture, "build", frozen)
    row = finetuning.measure(ARCHITECTURES["GPT2LMHeadModel"], seconds=0)
    assert row["way"] == "refused"
    assert "nothing to train" in row["reason"]


def test_the_page_in_the_docs_is_that_of_the_stored_rows() -> None:
    page = records.ROOT / "docs" / "transformers-table.md"
    assert page.read_text() == finetuning_page.markdown(KEPT)
    assert KEPT["rows"].keys() == ARCHITECTURES.keys()
