"""`psac report`: the page, and what it warns of, in the terminal too."""

from __future__ import annotations

import pytest

SHORT = ("--epochs", "0.2", "--physical-batch-size", "64")


def test_the_place_of_the_page_is_all_that_is_printed_of_a_sound_run(call, place):
    assert call("train", "mine.toml", *SHORT).code == 0
    made = call("report", "runs/mine")
    assert (made.code, made.out, made.err) == (0, "runs/mine/report.html\n", "")


def test_a_published_page_comes_with_the_names_of_the_files_that_may_go_with_it(call, place):
    assert call("train", "mine.toml", *SHORT).code == 0
    made = call("report", "runs/mine", "--publish")
    assert (made.code, made.out) == (0, "runs/mine/report-public.html\n")
    assert made.message == (
        "Of runs/mine, you may also publish ledger.json, model.safetensors. Keep all other files "
        "with the data."
    )


@pytest.mark.filterwarnings("ignore::psac.PrivacyWarning")
def test_what_was_read_off_the_records_is_told_once_and_before_publishing(call, place):
    text = (place / "mine.toml").read_text()
    (place / "own.toml").write_text(text.replace('classes = ["0", "1"]', "unsafe = true"))
    assert call("train", "own.toml", *SHORT).code == 0
    made = call("report", "runs/own", "--publish")
    assert made.message.count("The classes in the array y were read off the private records.") == 1
    assert "you may also publish" not in made.message
    assert "model.safetensors belong to the page. Read its warnings before you" in made.message


def test_warnings_of_the_page_are_repeated_in_the_terminal(call, place):
    assert call("train", "mine.toml", *SHORT).code == 0
    (place / "runs" / "mine" / "ledger.json").write_text('{"format": ')
    made = call("report", "runs/mine", "--publish")
    assert made.out == "runs/mine/report-public.html\n"
    assert "Nothing in the folder proves how private this model is." in made.message
    assert "ledger.json cannot be read" in made.message


@pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")
def test_a_seed_is_repeated_in_the_terminal_for_the_run_that_has_it(call, place):
    assert call("train", "mine.toml", "--run", "runs/one", *SHORT).code == 0
    assert call("train", "mine.toml", "--run", "runs/two", "--seed", "1", *SHORT).code == 0
    made = call("report", "runs/one", "runs/two")
    assert made.message.startswith("runs/two: This model protects nobody")
    assert "runs/one" not in made.message
