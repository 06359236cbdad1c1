"""Commands that documents show exist, with the arguments and options that they are shown with."""

from __future__ import annotations

import importlib
import re
import shlex

import pytest
import typer

from paper.__main__ import main as main_of_paper
from psac.app.cli.app import app
from tests.docs.markdown import PAGES, ROOT, blocks, inline, name, prose

PAPER = importlib.import_module(main_of_paper.__module__).assembled()
APPS = {"psac ": app, "python -m paper ": PAPER}


def shown(page) -> list[str]:
    """Lines that a person would type."""
    indented = re.findall(r"^ {4}(\S.*)$", prose(page), re.MULTILINE)
    fenced = "\n".join(code for _, code in blocks(page, "sh")).replace("\\\n", " ")
    lines = [*indented, *fenced.splitlines()]
    return [line for line in lines if line.startswith(tuple(APPS))]


def parse(line: str) -> None:
    """Raises what the command line would complain about; runs nothing."""
    start = next(start for start in APPS if line.startswith(start))
    words = shlex.split(line.partition(" > ")[0].removeprefix(start), comments=True)
    command = typer.main.get_command(APPS[start])
    while hasattr(command, "commands"):
        own = {option for parameter in command.params for option in parameter.opts}
        while words[0] in own:  # of the group itself, such as --debug
            words.pop(0)
        if words[0] not in command.commands:
            raise LookupError(f"no such command: {words[0]}")
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)


@pytest.mark.parametrize("page", [page for page in PAGES if shown(page)], ids=name)
def test_commands_can_be_typed_as_they_are_shown(page):
    for line in shown(page):
        try:
            parse(line)
        except Exception as error:
            raise AssertionError(f"{name(page)}: {line!r}: {error}") from error


@pytest.mark.parametrize(
    "wrong",
    ["psac tarin x", "psac train x --epsilonn 3", "psac data lst", "python -m paper fig99"],
)
def test_what_cannot_be_typed_is_found(wrong):
    with pytest.raises(Exception, match=r"(?i)no such"):
        parse(wrong)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_named_in_the_text_exist(page):
    for code in inline(page):
        for start, of in APPS.items():
            words = code.removeprefix(start).split()
            if code.startswith(start) and re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
                known = typer.main.get_command(of).commands
                assert words[0] in known, f"{name(page)}: {code}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    indented = re.findall(r"^ {4}make ([a-z-]+)", page.read_text(), re.MULTILINE)
    named = [code.split()[1] for code in inline(page) if re.fullmatch(r"make [a-z-]+", code)]
    assert set(indented + named) <= set(targets)
