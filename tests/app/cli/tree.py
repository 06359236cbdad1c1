"""All commands, arguments and options as text: what users' scripts may rely on.

    python -m tests.app.cli.tree > tests/app/cli/tree.txt

writes anew what the test compares with, when a change is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from psac.app.cli.app import app


def tree() -> str:
    return "".join(f"{line}\n" for line in _lines("psac", typer.main.get_command(app)))


def _lines(path: str, command: Any) -> Iterator[str]:
    """A line for the command, one for each of its parameters, then those below it."""
    yield path
    for parameter in command.params:
        yield f"  {_parameter(parameter)}"
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _lines(f"{path} {name}", below)


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        text = parameter.name.upper() + (" ..." if parameter.nargs == -1 else "")
        return text if parameter.required else f"[{text}]"
    text = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if not parameter.is_flag:
        text += " VALUE"
    if parameter.multiple:
        text += " ..."
    return f"{text}  required" if parameter.required else text


if __name__ == "__main__":
    print(tree(), end="")
