"""The models of the survey: each is evaluated as the stored table says, and none is refused."""

import warnings
from pathlib import Path

import pytest
import torch

from benchmarks import records, survey, survey_page
from benchmarks.models import FAMILIES, MODELS, RECORDS
from psac.gradients import Evaluator, trees
from psac.gradients.vectorized.selfcheck import distance

FEW = 4
KEPT = survey.load(records.ROOT / "results" / "bench")
ROUNDED = {"autocast": 2e-2, "autocast_transformer": 2e-2, "bfloat16": 2e-2}  # half precision
# What psac does not do yet; an entry goes when its test passes.
DEFECTS: dict[str, str] = {}  # by name: what psac does not do yet


def named() -> list:
    """The names of all models, with what is known of them."""
    known = {
        name: pytest.mark.xfail(strict=True, reason=reason) for name, reason in DEFECTS.items()
    }
    return [pytest.param(name, marks=known.get(name, ())) for name in MODELS]


@pytest.fixture(autouse=True)
def on_one_thread():
    with survey.one_thread():
        yield


@pytest.mark.parametrize("name", named())
def test_a_model_is_evaluated_as_the_table_says_and_exactly(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and transformers warn of what they are asked to do
        model, loss, batch = MODELS[name].build()
        assert trees.num_records(batch) == RECORDS
        few, evaluator = trees.records(batch, torch.arange(FEW)), Evaluator(model)
        evaluation = evaluator(loss, few)
        assert evaluation.way == KEPT["rows"][name]["way"], evaluator.reasons
        if evaluation.way == "vmap":
            assert distance(evaluator.vectorized, loss, few) < ROUNDED.get(name, 1e-3)


def test_there_are_many_models_and_their_files_are_small() -> None:
    assert len(MODELS) >= 100
    assert len(MODELS) == sum(len(module.MODELS) for module in FAMILIES.values())  # no name twice
    assert all(entry.title for entry in MODELS.values())
    folder = Path(survey.__file__).parent / "models"
    assert all(len(path.read_text().splitlines()) <= 300 for path in folder.glob("*.py"))


def test_a_row_has_a_way_a_distance_and_a_ratio() -> None:
    row = survey.measure(MODELS["logistic_regression"], seconds=0)
    assert row["way"] == "vmap"
    assert row["distance"] < 1e-5
    assert row["ratio"] == pytest.approx(row["private_ms"] / row["ordinary_ms"], rel=0.01)
    assert row["parameters"] == 7850


def test_a_refused_model_is_a_row_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> tuple:
        return torch.nn.Linear(2, 1).requires_grad_(False), torch.sum, torch.zeros(16, 2)

    entry = survey.Entry(name="frozen", title="frozen", family="Losses", function=refused)
    row = survey.measure(entry, seconds=0)
    assert row["way"] == "refused"
    assert "nothing to train" in row["reason"]


def test_a_survey_is_resumed_where_it_was_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    survey.run(tmp_path, ["poisson"], seconds=0, seed=0, fresh=False)
    survey.run(tmp_path, ["poisson", "logistic_regression"], seconds=0, seed=0, fresh=False)
    assert capsys.readouterr().out.count("already measured") == 1
    found = survey.load(tmp_path)
    assert list(found["rows"]) == ["logistic_regression", "poisson"]  # in the order of the models
    (run,) = found["runs"].values()
    assert run["settings"] == {"seconds": 0, "seed": 0}
    assert run["environment"]["threads"] == 1


def test_the_page_is_made_from_the_rows() -> None:
    row = {"run": "a", "way": "vmap", "reason": "", "loops": [], "distance": 1e-7}
    fast = {**row, "ordinary_ms": 10.0, "ratio": 1.5}
    slow = {**row, "ordinary_ms": 5.0, "ratio": 4.5, "loops": ["aten::histc"]}
    alone = {**row, "way": "alone", "reason": "x[mask] | here", "ordinary_ms": 1.0, "ratio": 20.0}
    run = records.new_record("models", "all", settings={}, sources=[])
    page = survey_page.markdown(
        {"runs": {"a": run}, "rows": {"mlp": fast, "lstm": slow, "electra": alone}}
    )
    assert "2 are evaluated by `torch.vmap`, 1 one record at a time, and 0 are refused" in page
    assert "| 3 ms or more | 2 | 2 | 3.00x | 1 | 3.00x |" in page
    assert "- `lstm`, LSTM over words: 4.5x of 5.0 ms\n\n0 more have" in page
    assert "- `electra`, ELECTRA discriminator: alone: x[mask] \\| here" in page
    assert "| **4.5x** | `aten::histc` |" in page


def test_the_page_in_the_docs_is_that_of_the_stored_rows() -> None:
    page = records.ROOT / "docs" / "models-table.md"
    assert page.read_text() == survey_page.markdown(KEPT)
    assert KEPT["rows"].keys() == MODELS.keys()
