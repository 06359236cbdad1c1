"""Commands and options: the set of them is frozen, and the shell completes them and their names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from psac.app.cli.app import COMMANDS, GROUPS, app
from tests.app.cli.tree import tree

FROZEN = Path(__file__).with_name("tree.txt")


def test_commands_and_options_are_those_that_users_know():
    """To accept a change: `python -m tests.app.cli.tree > tests/app/cli/tree.txt`."""
    assert tree() == FROZEN.read_text()


def test_every_command_says_what_it_does():
    for commands in COMMANDS.values():
        for words, function in commands.items():
            assert function.__doc__, words
            assert words.split()[0] in GROUPS or " " not in words


@pytest.fixture
def completed(monkeypatch, capsys):
    """What bash is offered for a line, its last word being the one that is typed."""

    def completed(line: str) -> list[str]:
        monkeypatch.setenv("_PSAC_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit):
            app([], prog_name="psac")
        return capsys.readouterr().out.split()

    return completed


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("psac tr", {"train"}),
        ("psac train fash", {"fashion-mnist-cnn"}),
        ("psac train --data mni", {"mnist"}),
        ("psac train --model res", {"resnet9"}),
        ("psac train --rule a", {"abadi", "adaptive_psac", "auto_s", "auto_v"}),
        ("psac train --sampling ball", {"balls-in-bins"}),
        ("psac train --optimizer na", {"nadam"}),
        ("psac train --schedule co", {"constant", "cosine"}),
        ("psac train --learn", {"--learning-rate"}),
        ("psac recipes digits", {"digits-linear"}),
        ("psac data get cif", {"cifar10", "cifar10-features"}),
    ],
)
def test_the_shell_completes_commands_options_and_names(completed, line, expected):
    assert set(completed(line)) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_the_shell_is_shown_and_installed(call, shell, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os.path, "expanduser", lambda path: path.replace("~", str(tmp_path)))
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (shell, f"/bin/{shell}"))
    shown = call("--show-completion")
    assert shown.code == 0
    assert "_PSAC_COMPLETE=complete_" + shell in shown.out
    installed = call("--install-completion")
    assert installed.code == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_PSAC_COMPLETE" in path.read_text() for path in files)
