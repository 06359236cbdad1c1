"""The table of broken versions is up to date; that each is caught, `make mutations` shows."""

from __future__ import annotations

import pytest

from tests.mutations import MUTATIONS, PAGE, ROOT, is_caught, page


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_text_to_be_broken_is_in_the_package_once(mutation):
    for file, text, replacement in mutation.changes:
        assert (ROOT / "psac" / file).read_text().count(text) == 1, text
        assert text != replacement
    for test in mutation.tests:
        file, _, name = test.partition("::")
        function = name.partition("[")[0]  # without the parameters
        assert f"def {function}" in (ROOT / file).read_text() or not name


def test_the_page_lists_all_of_them():
    assert PAGE.read_text() == page()


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_broken_version_is_caught(mutation):
    assert is_caught(mutation)
