"""The README stays short, and its generated parts keep their place; its code runs with that of all
pages (tests/docs)."""

from __future__ import annotations

from tests.docs.markdown import ROOT, blocks

README = ROOT / "README.md"
MARKS = ("check", "bench")


def test_the_example_is_ten_lines_of_private_training():
    code = blocks(README, "python")[0][1]
    training = code[code.index("def loss") : code.index("test = ")]
    assert len([line for line in training.splitlines() if line]) <= 10


def test_what_is_written_by_hand_stays_short():
    text = README.read_text()
    for mark in MARKS:
        text = text[: text.index(f"<!-- {mark}:begin")] + text[text.index(f"<!-- {mark}:end") :]
    assert len(text.splitlines()) <= 180


def test_generated_blocks_have_their_marks():
    text = README.read_text()
    for mark in MARKS:
        assert text.index(f"<!-- {mark}:begin -->") < text.index(f"<!-- {mark}:end -->")
