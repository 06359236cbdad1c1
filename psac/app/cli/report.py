"""`psac report`: the page of a run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from psac.app.cli.console import as_typed, console, errors


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs: one, or several to compare.")
    ],
    output: Annotated[Path | None, typer.Option(help="Where the page goes.")] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Leave out what is not private.")
    ] = False,
) -> None:
    """Make the page of a run, or of several side by side."""
    from psac.app.reporting import report as write

    page = write(runs if len(runs) > 1 else runs[0], output=output, publish=publish)
    _repeat_warnings(runs)
    console.print(as_typed(page), soft_wrap=True)


def _repeat_warnings(folders: list[Path]) -> None:
    """What the page warns of: who makes it in the terminal may not open it."""
    from psac.app.reporting.head import warnings
    from psac.app.reporting.runs import read

    for folder in folders:
        for warning in warnings(read(folder)):
            errors.print(f"[yellow]{escape(f'{folder}: {warning}')}[/]", soft_wrap=True)
