"""Table 2: what is run, what is chosen by what, and what the table says."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

import pytest
from scipy import stats

from paper.result_files import name_of, read_result, settings_of, write_result
from paper.tables import markdown, table2
from paper.tables.row import COLUMNS, Percent, Row
from paper.tables.study import Study, studies
from paper.tables.table2 import TABLE2
from psac.app.training import Run, train
from tests.app.training.test_many import CLASSES, clouds

PAPER = {"abadi": Percent(90, 1), "auto_s": Percent(91, 1), "psac": Percent(92, 1)}


def row(data: Path, **changes) -> Row:
    settings = {
        **{"data": str(data), "data_settings": CLASSES, "model": "linear"},
        **{"noise_multiplier": 4.0, "delta": 1e-3},
        **{"batch_size": 20, "epochs": 1},
    }
    usual = {
        **{"name": "clouds", "title": "Clouds", "network": "linear", "budget": "(?, 1e-3)"},
        **{"paper": PAPER, "settings": settings, "learning_rates": (1.0, 5.0), "seeds": (0, 1)},
    }
    return Row(**(usual | changes))


def study(tmp_path: Path, **changes) -> Study:
    made = row(clouds(tmp_path / "clouds"), **changes)
    return Study(row=made, results=tmp_path / "results", runs=tmp_path / "runs")


def keep(found: Study, recipe, accuracy: float, **more: float) -> None:
    """A result file as if the run had been made."""
    found.results.mkdir(exist_ok=True)
    result = {"recipe": settings_of(recipe), "accuracy": accuracy, "epsilon": 3.0, "seconds": 60.0}
    result |= {"accuracy_by_epoch": [[1, accuracy + 0.01], [2, accuracy]], **more}
    (found.results / f"{name_of(recipe)}.json").write_text(json.dumps(result))


def tuned(found: Study, best: float) -> None:
    for rule in COLUMNS:
        for recipe in found.tuning(rule):
            keep(found, recipe, 0.9 if recipe.learning_rate == best else 0.8)


@pytest.mark.parametrize("name", TABLE2)
def test_rules_are_tuned_alike_without_test_records_and_reported_seeds(name):
    row = TABLE2[name]
    for rule in COLUMNS:
        tried = [row.tuning_recipe(rule, rate) for rate in row.learning_rates]
        assert [recipe.learning_rate for recipe in tried] == list(row.learning_rates)
        for recipe in tried:
            assert recipe.validation_fraction > 0
            assert recipe.seed not in row.seeds
            reported = row.recipe(rule, recipe.learning_rate, row.seeds[0])
            assert reported.validation_fraction == 0
            assert len(recipe.differences(reported)) == 2  # held-out part and seed
    assert len(set(row.seeds)) == (5 if row.paper else 3)


def test_every_row_of_the_paper_is_there_and_says_why_it_is_not_run():
    assert len([r for r in TABLE2.values() if len(r.paper) == 3 and not r.own_recipe]) == 7
    assert all("not run here" in row.note for row in TABLE2.values() if not row.run_here)
    assert TABLE2["fashion-mnist"].paper["psac"] == Percent(86.56, 0.16)


def test_the_best_rate_is_chosen_when_all_were_tried(tmp_path):
    found = study(tmp_path)
    assert found.rate("psac") is None
    assert found.reported("psac") == []
    tuned(found, best=5.0)
    assert found.rate("psac") == 5.0
    assert [recipe.seed for recipe in found.reported("psac")] == [0, 1]
    for recipe in found.tuning("psac"):
        keep(found, recipe, 0.8)
    assert found.rate("psac") == 1.0  # a tie


def test_runs_are_made_once_and_leave_a_result_file(tmp_path):
    found = study(tmp_path, learning_rates=(1.0,), seeds=(0, 1)).only(["psac"])
    stages = found.stages()
    for _ in range(2):
        _, jobs = next(stages)
        outcomes = found.train(jobs, processes=2, watch=lambda job, line: None)
        assert not any(outcome.error for outcome in outcomes)
    assert [jobs for _, jobs in found.stages()] == [[], []]
    recipe = found.row.recipe("psac", 1.0, 0)
    result = read_result(found.results / "psac-lr1-seed0.json", recipe)
    assert result is not None
    summary = Run(found.runs / "psac-lr1-seed0").summary()
    assert result["accuracy"] == summary["accuracy"] == result["accuracy_by_epoch"][-1][1]
    assert result["epsilon"] == summary["epsilon"]
    assert result["secure"] is False
    assert "torch" in result["versions"]
    text = (found.results / "psac-lr1-seed0.json").read_text().replace(str(tmp_path), "")
    assert "/tmp" not in text
    assert "python" not in json.dumps({k: v for k, v in result.items() if k != "versions"})


def test_a_result_of_another_recipe_is_not_taken_for_this_one(tmp_path):
    found = study(tmp_path)
    keep(found, found.row.recipe("psac", 1.0, 0), 0.9)
    longer = dataclasses.replace(found.row, settings={**found.row.settings, "epochs": 2})
    with pytest.raises(ValueError, match=r"another recipe \(epochs: 1.0 -> 2.0\)"):
        dataclasses.replace(found, row=longer).result(longer.recipe("psac", 1.0, 0))


def test_where_the_data_lie_is_no_part_of_a_result(tmp_path):
    found = study(tmp_path, learning_rates=(1.0,), seeds=(0, 1)).on(tmp_path / "elsewhere")
    recipe = found.row.recipe("psac", 1.0, 0)
    assert recipe.data_root == str(tmp_path / "elsewhere")
    keep(found, dataclasses.replace(recipe, data_root=None), 0.9)
    assert found.result(recipe)["accuracy"] == 0.9


def test_the_table_agrees_with_its_result_files(tmp_path):
    found = study(tmp_path)
    tuned(found, best=5.0)
    accuracies = {"psac": [0.90, 0.92], "abadi": [0.85, 0.86], "auto_s": [0.91]}
    for rule, values in accuracies.items():
        for recipe, accuracy in zip(found.reported(rule), values, strict=False):
            keep(found, recipe, accuracy)
    path = markdown.write_table([found], tmp_path / "table2", "")
    entries = {e["rule"]: e for e in json.loads((tmp_path / "table2" / "table.json").read_text())}
    assert entries["psac"]["mean"] == pytest.approx(91)
    assert entries["psac"]["deviation"] == pytest.approx(statistics.stdev([90, 92]))
    expected = stats.ttest_ind([85, 86], [90, 92], equal_var=False).pvalue
    assert entries["abadi"]["test"]["p"] == pytest.approx(expected)
    assert entries["abadi"]["test"]["difference"] == pytest.approx(-5.5)
    by_seed = stats.ttest_rel([85, 86], [90, 92]).pvalue
    assert entries["abadi"]["test"]["paired_p"] == pytest.approx(by_seed)
    assert entries["abadi"]["command"] == "python -m paper table2 --row clouds"
    assert entries["auto_s"]["test"] is None  # one seed is no test
    text = path.read_text()
    line = next(line for line in text.splitlines() if line.startswith("| DP-SGD"))
    assert "90.00 ± 1.00" in line  # the paper
    assert "85.50 ± 0.71" in line
    assert "2 of 2" in line
    assert "**91.00 ± 1.41**" in text
    assert entries["psac"]["best_epoch"] == pytest.approx(92)
    assert "| DP-PSAC | 80.00 | **90.00** |" in text  # the held-out accuracy at each rate
    assert "not yet" in next(x for x in text.splitlines() if x.startswith("| AdaptivePSAC"))
    edges = "Best at the edge of the grid: DP-SGD, Auto-S, DP-PSAC, AdaptivePSAC."
    assert edges in text  # a grid of two has nothing else


def test_the_paired_test_takes_runs_of_one_seed_together(tmp_path):
    found = study(tmp_path, seeds=(0, 1, 2))
    tuned(found, best=5.0)
    runs: dict[str, list[float | None]] = {
        "psac": [0.90, 0.80, 0.85],
        "abadi": [None, 0.79, 0.83],
    }
    for rule, accuracies in runs.items():
        for recipe, accuracy in zip(found.reported(rule), accuracies, strict=True):
            if accuracy is not None:
                keep(found, recipe, accuracy)
    (entry,) = (e for e in markdown.entries([found], "table2") if e["rule"] == "abadi")
    expected = stats.ttest_rel([79, 83], [80, 85]).pvalue  # seed 0 has no partner
    assert entry["test"]["paired_p"] == pytest.approx(expected)


def test_beside_a_recipe_of_our_own_the_paper_is_quoted_in_parentheses(tmp_path):
    for own, quoted in (
        (False, "| DP-PSAC | 92.00 ± 1.00 |"),
        (True, "| DP-PSAC | (92.00 ± 1.00)"),
    ):
        text = markdown.markdown(
            [row(tmp_path, own_recipe=own)], markdown.entries([study(tmp_path)], "table2")
        )
        assert quoted in text


def test_the_table_says_what_became_of_a_learned_scale_and_what_constant_answers_give(tmp_path):
    found = study(tmp_path, seeds=(0, 1, 2))
    tuned(found, best=5.0)
    for recipe, scale in zip(found.reported("adaptive_psac"), (0.1, 0.02, 0.5), strict=True):
        keep(found, recipe, 0.9, last_scale=scale)
    for recipe in found.reported("psac"):
        keep(found, recipe, 0.92, constant_accuracy=0.747)
    path = markdown.write_table([found], tmp_path / "table2", "")
    entries = {e["rule"]: e for e in json.loads((tmp_path / "table2" / "table.json").read_text())}
    assert entries["adaptive_psac"]["last_scale"] == 0.1
    assert entries["psac"]["last_scale"] is None
    assert "AdaptivePSAC learns began at 1 and was 0.1 at the end" in path.read_text()
    assert "The same answer to all records: 74.70." in path.read_text()


@pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")
def test_a_result_file_has_the_last_scale_that_was_learned(tmp_path):
    found = study(tmp_path, learning_rates=(1.0,), seeds=(0,))
    run = train(found.row.recipe("adaptive_psac", 1.0, 0), tmp_path / "run")
    write_result(run, tmp_path / "result.json")
    scales = [line["scale"] for line in run.metrics() if line["kind"] == "step"]
    assert json.loads((tmp_path / "result.json").read_text())["last_scale"] == scales[-1] != 1
    write_result(
        train(found.row.recipe("psac", 1.0, 0), tmp_path / "other"), tmp_path / "other.json"
    )
    assert "last_scale" not in json.loads((tmp_path / "other.json").read_text())


def test_a_row_that_is_not_run_here_is_shown_by_who_has_run_it(tmp_path):
    found = study(tmp_path, run_here=False, note="not run here: no data")
    assert "Clouds, linear, (?, 1e-3): not run here" in markdown.markdown(
        [found.row], markdown.entries([found], "table2")
    )
    tuned(found, best=5.0)
    assert "### Clouds" in markdown.markdown([found.row], markdown.entries([found], "table2"))


def test_rows_that_are_not_run_are_in_the_table_with_the_reason(tmp_path):
    path = markdown.write_table(
        studies(TABLE2, tmp_path / "results", tmp_path / "runs"), tmp_path, table2.TITLE
    )
    text = path.read_text()
    assert "CelebA [Male], ResNet9, (8, 5e-6): not run here" in text
    assert "DP-PSAC 95.57 ± 0.02" in text
    assert text.count("not yet") == len(COLUMNS) * sum(1 for r in TABLE2.values() if r.run_here)
