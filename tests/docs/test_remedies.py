"""Every remedy in docs/models.md is shown: code that is slow or refused, and code that is not.

The page's own assertions run with the code of all pages (test_code.py).
"""

from __future__ import annotations

import re

import pytest

from tests.docs.markdown import ROOT

TEXT = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
REMEDIES = TEXT[TEXT.index("\n## Remedies\n") : TEXT.index("\n## What is refused\n")]
ROWS = re.findall(r"^\| \[.*\]\(#([\w-]+)\) \|", REMEDIES, re.MULTILINE)


def sections() -> dict[str, str]:
    """The sections of the remedies by their anchors."""
    bodies = re.split(r"^### ", REMEDIES, flags=re.MULTILINE)[1:]
    return {body.partition("\n")[0].lower().replace(" ", "-"): body for body in bodies}


def test_the_table_lists_every_section():
    assert list(sections()) == ROWS
    assert len(ROWS) >= 10


@pytest.mark.parametrize("row", ROWS)
def test_a_remedy_shows_what_is_slow_or_refused_and_what_runs_under_vmap(row):
    before, *after = re.findall(r'^assert way\(.*\) == "(\w+)"$', sections()[row], re.MULTILINE)
    assert before in ("alone", "refused")
    assert set(after) == {"vmap"}
