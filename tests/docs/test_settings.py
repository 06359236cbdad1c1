"""The table of settings says what the code does."""

from __future__ import annotations

from tests.docs.markdown import ROOT
from tests.docs.settings import table


def test_the_settings_of_a_recipe_are_listed_with_their_defaults_and_values():
    """If a setting was changed: python -m tests.docs.settings prints the table anew."""
    assert table() in (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
