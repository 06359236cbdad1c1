"""`psac report`: the page of a run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psac.cli.console import as_typed, console


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
    from psac.reporting import report as write

    page = write(runs if len(runs) > 1 else runs[0], output=output, publish=publish)
    console.print(as_typed(page), soft_wrap=True)
