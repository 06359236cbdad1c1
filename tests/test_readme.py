"""The README stays short, and generated parts keep their place; code runs with that of all pages
(tests/docs)."""

from __future__ import annotations

import pytest

from tests.docs.markdown import ROOT, blocks

README = ROOT / "README.md"
MARKS = [
    ("README.md", "bench"),
    ("docs/benchmarks.md", "bench"),
    ("docs/guides/own-model.md", "check"),
]


def test_the_example_is_ten_lines_of_private_training():
    code = blocks(README, "python")[0][1]
    training = code[code.index("def loss") : code.index("test = ")]
    assert len([line for line in training.splitlines() if line]) <= 10


def test_it_stays_short():
    text = README.read_text()
    assert len(text.splitlines()) <= 140
    assert len(text) <= 10_000


@pytest.mark.parametrize("page, mark", MARKS)
def test_generated_blocks_have_their_marks(page, mark):
    text = (ROOT / page).read_text()
    assert text.index(f"<!-- {mark}:begin -->") < text.index(f"<!-- {mark}:end -->")
