"""The Python of every page runs, block after block, and names what exists."""

from __future__ import annotations

import importlib
import re

import pytest

from psac.private import Private
from tests.docs.markdown import PAGES, blocks, inline, name

WITH_CODE = [page for page in PAGES if blocks(page, "python")]
SHOWN = {  # what a page's code must have printed
    "README.md": [r"accuracy 9\d\.\d% at epsilon (2\.99\d|3\.000)"],
    "docs/tutorial.md": [
        r"ordinary: 9\d\.\d%",
        r"private: [89]\d\.\d% at epsilon (2\.99\d|3\.000)",
        r"the 112 planned steps are done",
        r"BatchNorm1d at '1'",
        r"report-public\.html",
    ],
    "docs/guarantee.md": [r"the best of about ten runs"],
    "docs/private.md": [r"^5 \d"],
    "docs/guides/own-model.md": [r"can be trained privately +yes", r"table\.weight"],
}


@pytest.mark.usefixtures("same_draws_each_time")
@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_the_code_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for line, code in blocks(page, "python"):
        # Empty lines in front: a traceback then has the numbers of the page's own lines.
        exec(compile("\n" * (line - 1) + code, name(page), "exec"), namespace)
    printed = capsys.readouterr().out
    for pattern in SHOWN.get(name(page), []):
        assert re.search(pattern, printed), f"{pattern} in {printed}"


def resolved(dotted: str) -> object:
    """The object of this name, through modules and attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_in_the_text_exist(page):
    for code in inline(page):
        for dotted in re.findall(r"(?<![\w/.])psac(?:\.[A-Za-z]\w*)+(?!/)", code):
            resolved(dotted)
        for attribute in re.findall(r"(?<![\w/])private\.([a-z]\w*)", code):
            kept = ("loader", "ledger", "steps_taken", "sensitive", "model", "optimizer", "plan")
            assert hasattr(Private, attribute) or attribute in kept, f"private.{attribute}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_keywords_in_the_text_exist(page):
    import inspect

    for code in inline(page):
        for called, arguments in re.findall(r"(?<![\w/.])(psac(?:\.\w+)+)\((.*)\)", code):
            given = set(re.findall(r"(?<![\w=\"])(\w+)=", re.sub(r"\(.*\)", "", arguments)))
            known = set(inspect.signature(resolved(called)).parameters)
            assert given <= known, f"{name(page)}: {code} gives {given - known}"
