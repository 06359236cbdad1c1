"""Makes the pictures of the command line by running the commands that they show.

    python docs/pictures/terminal.py terminal     # a small training and a calibration: a minute
    python docs/pictures/terminal.py demo         # `psac demo`: a few minutes

A picture shows the live display of the first training after three fifths of its steps, and then
the output at its end.  Only the commands are typed.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from psac.app.cli import demo, pricing, train, views
from psac.app.cli.app import main

HERE = Path(__file__).resolve().parent
WIDTH = 92
SESSIONS = {
    "terminal": [
        "psac train digits-linear --epsilon 3",
        "psac calibrate 3 --records 60000 --batch-size 512 --epochs 40 --delta 1e-5",
    ],
    "demo": ["psac demo"],
}
# Without the fonts of a network: a reader's own monospace serves.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)

console = Console(
    record=True, width=WIDTH, force_terminal=True, file=io.StringIO(), highlight=False
)


class Moment(views.Live):
    """The live picture at the end of a run and, of the first run, once on the way."""

    drawn = False

    def __enter__(self) -> Moment:
        return self

    def __exit__(self, *_: object) -> None:
        console.print(self._display())

    def evaluated(self, info: dict[str, Any]) -> None:
        super().evaluated(info)
        if not Moment.drawn and info["step"] >= 0.6 * self.facts["planned_steps"]:
            Moment.drawn = True
            console.print(self._display())
            console.print()


def session(commands: list[str]) -> str:
    """What the commands write, as SVG."""
    views.Live = Moment  # type: ignore[misc]
    for module in (demo, pricing, train):
        module.console = console  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # paths are shown from where the user is
        for command in commands:
            console.print(f"[bold green]$[/] [bold]{command}[/]")
            try:
                main(command.split()[1:])
            except SystemExit as end:
                if end.code:
                    raise
            console.print()
        os.chdir(HERE)
    return console.export_svg(title="psac", code_format=FORMAT, unique_id="psac")


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "terminal"
    (HERE / f"{name}.svg").write_text(session(SESSIONS[name]), encoding="utf-8")
