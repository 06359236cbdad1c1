"""What goes wrong is told in one sentence that is true."""

from __future__ import annotations

import errno
import os
import runpy
import sys

import pytest

from psac import _starting
from psac.app.cli import app as app_module
from psac.app.cli import train as train_module
from psac.app.training.interruption import Interrupted


def test_what_cannot_be_read_is_not_said_to_be_written(call, place):
    found = call("train", "mine.toml", "--data", "records/none.npz")
    assert found.code != 0
    assert "while writing" not in found.message
    (place / "broken").mkdir()
    (place / "broken" / "train.csv").write_text("")
    found = call("train", "mine.toml", "--data", "broken", "--label", "y")
    assert found.code != 0
    assert "while writing" not in found.message


@pytest.mark.parametrize("typed, meant", [("--lr", "--learning-rate"), ("--sigma", "--noise-mul")])
def test_the_words_of_other_libraries_are_understood(call, place, typed, meant):
    found = call("train", "mine.toml", typed, "1")
    assert found.code == 2
    assert meant in found.message


def refused(*_, **__):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs/mine")


def test_a_folder_that_cannot_be_written_ends_in_one_sentence(call, place, monkeypatch):
    monkeypatch.setattr("psac.training.train", refused)
    found = call("train", "mine.toml")
    assert found.code == 1
    sentence = (
        "Error: runs/mine cannot be read or written (Permission denied). Choose another folder."
    )
    assert found.message == sentence


def test_a_full_disk_says_where_and_how_to_go_on(call, place, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert call("train", "mine.toml", "--epochs", "0.2").code == 0
    monkeypatch.setattr("psac.training.train", full)
    found = call("train", "mine.toml", "--resume")
    assert "No space left on device (while writing to runs/mine)." in found.message
    assert "psac train --run runs/mine --resume" in found.message


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Interrupted("runs/mine")])
def test_a_stop_before_the_first_step_speaks_of_no_lost_steps(call, place, monkeypatch, stop):
    def stopped(*_, **__):
        raise stop

    monkeypatch.setattr("psac.training.train", stopped)
    found = call("train", "mine.toml")
    assert found.code == 130
    assert "Stopped before the first step. Nothing was trained." in found.message
    assert "lost" not in found.message


def test_a_stop_after_steps_that_were_not_saved_still_says_so(call, place, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    assert call("train", "mine.toml", "--epochs", "0.2").code == 0
    monkeypatch.setattr("psac.training.train", stopped)
    found = call("train", "mine.toml", "--resume")
    assert "are lost, but count as spent" in found.message


def test_ctrl_c_during_an_import_ends_in_one_sentence(call, place, monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train_module, "_folder", stopped)
    found = call("train", "mine.toml")
    assert found.code == 130
    assert "Traceback" not in found.err
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "psac", "train"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    runpy.run_path(str(_starting.__file__))
    capsys.readouterr()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == "Stopped before anything was done.\n"


def test_another_program_that_imports_psac_keeps_its_own_hook(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "mine.py"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    runpy.run_path(str(_starting.__file__))
    assert sys.excepthook is sys.__excepthook__
    assert app_module.STOPPED == _starting.STOPPED
