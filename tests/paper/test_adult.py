"""The table of the recipe `adult` in the guide is that of the committed result files."""

from __future__ import annotations

from paper import adult


def test_the_table_in_the_guide_is_that_of_the_files(monkeypatch):
    def train(*_):
        raise AssertionError("a result file is missing")

    monkeypatch.setattr(adult, "train", train)
    page = adult.PAGE.read_text(encoding="utf-8")
    assert page.split(adult.BEGIN)[1].split(adult.END)[0].strip() == adult.table()


def test_reported_errors_become_accuracies_with_their_source():
    rows, note = adult.literature()
    assert "| C4.5, reported in 1996 | none | 84.46 % |  |  |" in rows  # adult.names has both
    assert "15,060 test records" in note
