"""Errors: a message that helps, an exit code, and a traceback only for those who ask."""

from __future__ import annotations

import pytest

import psac
from psac.app.cli.app import command_line, main


@pytest.fixture
def broken(monkeypatch):
    """Training fails as a bug would make it fail."""

    def trained(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr(psac.training, "train", trained)


def test_unknown_commands_and_options_are_usage_errors_with_a_guess(call):
    unknown = call("trian")
    assert unknown.code == 2
    assert "Did you mean 'train'?" in unknown.message
    assert call("train", "--epsilonn", "3").code == 2
    assert "--epsilon" in call("train", "--epsilonn", "3").message
    assert call("data", "get", "minst").code == 2
    assert "Did you mean 'mnist'?" in call("data", "get", "minst").message


def test_no_command_shows_the_help_and_is_a_usage_error(call):
    assert call().code == 2


def test_a_failure_is_one_message_and_exit_code_one(call, place):
    failed = call("report", "nowhere")
    assert failed.code == 1
    assert failed.err.startswith("Error: ")
    assert "nowhere" in failed.err
    assert "Traceback" not in failed.err


def test_a_bug_has_its_name_and_says_how_to_see_more(call, place, broken):
    failed = call("train", "mine.toml")
    assert failed.code == 1
    assert failed.err == "Error: KeyError: 'a bug' (`psac --debug ...` shows where)\n"


def test_debug_lets_the_traceback_through(place, broken):
    with pytest.raises(KeyError, match="a bug"):
        main(["--debug", "train", "mine.toml"])


def test_brackets_in_a_message_are_no_markup(call, place):
    assert "'[bold]x'" in call("report", "[bold]x").message


def test_a_traceback_shows_no_values_of_variables():
    """Older versions of typer show them by default, and they may be those of records."""
    assert command_line().pretty_exceptions_show_locals is False
