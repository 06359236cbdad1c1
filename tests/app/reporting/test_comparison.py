"""Several runs on one page."""

from __future__ import annotations

import json
import re

import psac
from psac.app.training.price import price
from tests.app.reporting.folders import make_run
from tests.app.reporting.pages import Tags, page_of, words_of


def test_runs_stand_side_by_side_with_a_test_between_rules(runs, tmp_path):
    folders = [runs[name] for name in ("secure", "again", "auto_s", "auto_s-again")]
    page = page_of(folders, tmp_path)
    words = words_of(page)
    Tags(page)
    for name in ("secure", "again", "auto_s-again"):
        assert name in words
    for part in (
        "Accuracy against epsilon",
        "Learning curves",
        "Means over runs",
        "Could it be chance?",
    ):
        assert part in words
    assert "psac minus auto_s" in words
    assert "The same in all runs: delta 1.67e-6, noise 1.2, batch 2,048, steps 88." in words


def test_the_price_of_seeing_all_runs_is_that_of_one_long_run(runs, tmp_path):
    ledger = psac.Ledger.from_json(json.loads((runs["secure"] / "ledger.json").read_text()))
    ledger.record(noise_multiplier=1.2, sampling_rate=2048 / 60_000, num_records=60_000, steps=88)
    words = words_of(page_of([runs["secure"], runs["again"]], tmp_path))
    found = re.search(r"Releasing all 2 runs costs epsilon ([\d.]+) at delta 1.67e-6", words)
    assert found is not None
    spent = price(ledger, 1 / 600_000)
    assert spent <= float(found[1]) < spent + 0.0101


def test_runs_of_different_data_have_no_common_price(runs, tmp_path):
    other = make_run(tmp_path / "other", epochs=1)
    recipe = other / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("fashion-mnist", "digits"))
    assert "Releasing all" not in words_of(page_of([runs["secure"], other], tmp_path))


def test_seeded_and_unfinished_runs_are_marked(runs, tmp_path):
    words = words_of(page_of([runs["secure"], runs["seeded"], runs["killed"]], tmp_path))
    assert "seeded: seeded. Anyone who knows the seed can subtract the noise" in words
    assert "killed: shown up to their last step" in words
    assert "would cost epsilon" in words
    assert "7, not private" in words
    assert "40 of 88" in words


def test_a_page_of_single_runs_speaks_of_no_means_and_no_bars(runs, tmp_path):
    repeated = words_of(page_of([runs["secure"], runs["again"]], tmp_path))
    assert "bars are one standard deviation" in repeated
    single = make_run(tmp_path / "single", epochs=1)
    recipe = single / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("fashion-mnist", "digits"))
    words = words_of(page_of([runs["secure"], single], tmp_path))
    assert "One run each, so small differences may be chance." in words
    assert "over seeds" not in words
