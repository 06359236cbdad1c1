"""Table 3: rows, columns, and what the table says of runs that are missing."""

from __future__ import annotations

import json

import pytest

from paper.claims.page import write_page
from paper.result_files import settings_of, without_folders
from paper.tables.markdown import write_table
from paper.tables.row import OURS
from paper.tables.study import file_of, studies
from paper.tables.table3 import OPEN, TABLE3, TITLE, section
from psac.app.text.pretrained import PRETRAINED


@pytest.mark.parametrize("name", TABLE3)
def test_columns_are_tuned_alike_without_test_records_and_reported_seeds(name):
    row = TABLE3[name]
    assert list(row.columns) == ["abadi", "auto_s", OURS, OPEN]
    assert len(row.seeds) >= 3
    for rule in row.columns:
        for rate in row.learning_rates:
            recipe = row.tuning_recipe(rule, rate)
            assert recipe.validation_fraction > 0
            assert recipe.seed not in row.seeds
            assert len(recipe.differences(row.recipe(rule, rate, row.seeds[0]))) == 2


@pytest.mark.parametrize("name", TABLE3)
def test_delta_is_one_over_twice_the_records_and_all_columns_train_the_same_model(name):
    from psac.app import data

    row = TABLE3[name]
    own = [row.recipe(rule, 1e-3, 0) for rule in row.columns]
    records = data.info(own[0].data).records["train"]
    for recipe in own:
        assert recipe.delta == pytest.approx(1 / (2 * records), rel=0.02)
        shared = (recipe.model, recipe.model_settings, recipe.batch_size, recipe.epochs)
        assert shared == (own[0].model, own[0].model_settings, own[0].batch_size, own[0].epochs)
    assert [recipe.noise_multiplier for recipe in own] == [None, None, None, 0.0]
    assert own[-1].epsilon is None
    assert {recipe.epsilon for recipe in own[:-1]} <= {3.0, 8.0}


def test_the_rows_of_the_paper_are_there_and_are_not_run_here():
    rows = [row for row in TABLE3.values() if row.paper]
    assert len(rows) == 8  # four tasks, two budgets
    for row in rows:
        assert not row.run_here
        assert "not run here" in row.note
        assert row.settings["model"] == "roberta-base"
    assert TABLE3["sst2-roberta-3"].paper[OURS].mean == 92.43


def test_a_run_without_privacy_has_a_file_of_its_own():
    row = TABLE3["sst2-minilm-lora-3"]
    files = [file_of(row.recipe(rule, 3e-3, 0)) for rule in row.columns]
    assert files[-1] == "open-abadi-lr0.003-seed0"
    assert len(set(files)) == 4


def test_where_the_weights_lie_is_no_part_of_a_result(tmp_path):
    (study,) = (s for s in studies(TABLE3, tmp_path, tmp_path) if s.row.name == "sst2-roberta-3")
    recipe = study.on(tmp_path / "data", tmp_path / "weights").any_recipe()
    assert recipe.model_settings["weights"] == str(tmp_path / "weights")
    assert recipe.model_settings["lengths"] == [16, 32, 64, 128, 256]
    assert str(tmp_path) not in json.dumps(settings_of(without_folders(recipe)))
    assert study.any_recipe() == without_folders(recipe)


def test_only_some_columns_can_be_asked_for(tmp_path):
    study = studies(TABLE3, tmp_path, tmp_path)[0]
    assert list(study.only(["psac", "open"]).row.columns) == ["psac", "open"]
    with pytest.raises(ValueError, match="rule 'psca' is unknown"):
        study.only(["psca"])


def test_the_page_shows_what_is_there_and_says_what_is_not(tmp_path):
    table = studies(TABLE3, tmp_path / "table3", tmp_path)
    assert "Nothing has been run yet." in section(tmp_path)
    study = table[0]
    recipe = study.tuning("psac")[0]
    (tmp_path / "table3" / study.row.name).mkdir(parents=True)
    result = {
        **{"recipe": settings_of(recipe), "accuracy": 0.8125, "epsilon": 3.0, "seconds": 60.0},
        "accuracy_by_epoch": [[1, 0.8125]],
    }
    path = tmp_path / "table3" / study.row.name / f"{file_of(recipe)}.json"
    path.write_text(json.dumps(result))
    text = write_table(table, tmp_path / "table3", TITLE).read_text()
    page = section(tmp_path)
    assert "| DP-PSAC | 81.25 |  |" in text
    assert "| DP-PSAC | 81.25 |  |" in page
    assert "not yet" in page
    for row in TABLE3.values():
        if row.name != study.row.name and row.run_here:
            assert f"`python -m paper table3 --row {row.name}`" in page
    assert "MNLI, matched, RoBERTa, all weights, (3, 1/(2N)): not run here" in page
    assert PRETRAINED["minilm"].seen.split(". ")[1][:20] in page
    assert "81.25" in write_page(tmp_path, tmp_path / "docs").read_text()
