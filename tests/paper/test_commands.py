"""`python -m paper`: what its README lists, where results go, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import paper
from paper.commands import COMMANDS
from paper.tables.table2 import TABLE2


def test_the_readme_lists_every_command():
    text = (Path(paper.__file__).parent / "README.md").read_text()
    assert set(re.findall(r"python -m paper (\w+)", text)) == set(COMMANDS)


def test_the_wheel_has_the_library_alone():
    project = (Path(paper.__file__).parents[1] / "pyproject.toml").read_text()
    assert '[tool.setuptools.packages.find]\ninclude = ["psac", "psac.*"]\n' in project


def test_help_lists_every_command(call):
    code, words = call("--help")
    assert code == 0
    assert all(name in words for name in COMMANDS)


def test_results_of_all_commands_are_in_one_folder(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("fig2", "--results", "mine")[0] == 0
    assert call("table2", "--write-only", "--results", "mine")[0] == 0
    assert (tmp_path / "mine" / "paper" / "fig2" / "data.json").exists()
    assert (tmp_path / "mine" / "table2" / "table.md").exists()
    assert call("page", "--results", "mine", "--docs", "docs")[0] == 0
    page = (tmp_path / "docs" / "paper.md").read_text()
    assert "paper/fig2-light.svg" in page


def test_a_folder_without_results_does_not_replace_the_page(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/paper.md").write_text("A page.")
    code, words = call("page", "--results", "typo")
    assert code == 2
    assert "typo has no results" in words
    assert Path("docs/paper.md").read_text() == "A page."


def test_a_row_that_is_unknown_is_refused_with_those_that_are_known(call):
    code, words = call("table2", "--row", "minst")
    assert code == 2
    assert "row 'minst' is unknown" in words
    assert "Did you mean 'mnist'" in words
    assert "imagenette" in words
    assert "imagenette" in TABLE2


def test_a_row_whose_data_are_not_there_says_where_they_are_looked_for(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PSAC_OFFLINE", "1")
    code, words = call("table2", "--row", "celeba-male")
    assert code == 1
    assert "celeba" in words.lower()
