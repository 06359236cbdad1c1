"""`psac paper` and `psac theory`: where results go, and what is refused."""

from __future__ import annotations

from pathlib import Path

from paper.experiments.rows import TABLE2


def test_results_of_all_commands_are_in_one_folder(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("paper", "fig2", "--results", "mine").code == 0
    assert call("paper", "table2", "--write-only", "--results", "mine").code == 0
    assert (tmp_path / "mine" / "paper" / "fig2" / "data.json").exists()
    assert (tmp_path / "mine" / "table2" / "table.md").exists()
    said = call("paper", "page", "--results", "mine", "--docs", "docs")
    assert said.code == 0
    page = (tmp_path / "docs" / "paper.md").read_text()
    assert "paper/fig2-light.svg" in page


def test_a_folder_without_results_does_not_replace_the_page(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/paper.md").write_text("A page.")
    said = call("paper", "page", "--results", "typo")
    assert said.code == 2
    assert "typo has no results" in said.err
    assert Path("docs/paper.md").read_text() == "A page."


def test_a_row_that_is_unknown_is_refused_with_those_that_are_known(call):
    said = call("paper", "table2", "--row", "minst")
    assert said.code == 2
    assert "row 'minst' is unknown" in said.err
    assert all(name in said.err.replace("\n", "") for name in ("fashion-mnist", "imagenette"))
    assert "imagenette" in TABLE2


def test_a_row_whose_data_are_not_there_says_where_they_are_looked_for(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PSAC_OFFLINE", "1")
    said = call("paper", "table2", "--row", "celeba-male")
    assert said.code == 1
    assert "celeba" in (said.out + said.err).lower()
