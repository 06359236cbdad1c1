"""The picture of the command line in the docs."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path

import pytest

from tests.app.cli.tree import tree

FOLDER = Path(__file__).parents[3] / "docs" / "pictures"


def sessions() -> dict[str, list[str]]:
    spec = importlib.util.spec_from_file_location("terminal", FOLDER / "terminal.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SESSIONS


def words_of(picture: Path) -> str:
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", picture.read_text(encoding="utf-8"))
    return html.unescape(" ".join(texts)).replace("\xa0", " ")


@pytest.mark.parametrize("picture", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_is_of_its_commands_and_names_no_place_of_a_machine(picture):
    text = words_of(picture)
    for command in sessions()[picture.stem]:
        assert f" {command} " in text
    assert not re.search(r"(^|\s)/\w+/", text)


def test_the_commands_of_the_pictures_are_those_of_psac():
    known = tree()
    for commands in sessions().values():
        for command in commands:
            assert f"\n{' '.join(command.split()[:2])}\n" in known
            for flag in re.findall(r"--[\w-]+", command):
                assert f"  {flag} " in known
