"""The README stays short, and its generated parts keep their place; its code runs with that of all
pages (tests/docs)."""

from __future__ import annotations

from tests.docs.markdown import ROOT, blocks

README = ROOT / "README.md"


def test_the_example_is_ten_lines_of_private_training():
    code = blocks(README, "python")[0][1]
    training = code[code.index("private = ") : code.index("test = ")]
    assert len(training.strip().splitlines()) <= 10


def test_the_readme_stays_short():
    assert len(README.read_text().splitlines()) <= 250


def test_generated_blocks_have_their_marks():
    text = README.read_text()
    for mark in ("check", "bench"):
        assert text.index(f"<!-- {mark}:begin -->") < text.index(f"<!-- {mark}:end -->")
