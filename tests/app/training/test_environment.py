"""The command that a run writes down: short, repeatable, and without the machine's own paths."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from psac.app.training.environment import command, environment

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    ("arguments", "typed", "expected"),
    [
        ([f"{BIN}/psac", "train", "x"], ["/usr/bin/python3", f"{BIN}/psac", "train", "x"],
         "psac train x"),
        (["/some/where/psac/__main__.py", "train"], ["python", "-m", "psac", "train"],
         "psac train"),
        (["psac.exe", "train"], [], "psac train"),
        (["psac", "train", "/my/own data.csv"], [], "psac train '/my/own data.csv'"),
        ([f"{BIN}/pytest", "-q"], [str(sys.executable), f"{BIN}/pytest", "-q"], "pytest -q"),
        (["/here/mine.py", "3"], ["/bin/python3", "/here/mine.py", "3"], "python /here/mine.py 3"),
        (["/here/tests/small.py", "3"], ["/bin/python3", "-m", "tests.small", "3"],
         "python -m tests.small 3"),
        (["-c"], ["/bin/python3", "-c", "print(1)"], "python -c 'print(1)'"),
        ([""], ["/bin/python3"], "python"),
        ([], ["/bin/python3"], "python"),
    ],
)  # fmt: skip
def test_a_command_is_what_was_typed_without_the_place_of_the_program(arguments, typed, expected):
    assert command(arguments, typed) == expected


def test_the_environment_names_no_place_of_this_machine(monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"{BIN}/psac", "train", "mine.toml"])
    found = environment(seed=None, device=torch.device("cpu"))
    assert found["command"] == "psac train mine.toml"
    assert found["secure"] is True
    for place in (Path.home(), Path.cwd(), BIN):
        assert str(place) not in str(found)
