"""`psac report`: a page about one run, or about several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from psac.app.cli.console import as_typed, console, errors


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folder of a run, or several folders to compare.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="HTML file or folder. Default: report.html in the folder of the run."),
    ] = None,
    publish: Annotated[
        bool,
        typer.Option(
            "--publish", help="Leave out everything that is not covered by the guarantee."
        ),
    ] = False,
) -> None:
    """Write the report of a run, or compare several runs in one report."""
    from psac.app.reporting import report as write

    page = write(runs if len(runs) > 1 else runs[0], output=output, publish=publish)
    _repeat_warnings(runs)
    console.print(as_typed(page), soft_wrap=True)
    if publish:
        _say_what_else(runs)


def _say_what_else(folders: list[Path]) -> None:
    """Prints which files may be published beside the page."""
    from psac.app.reporting.publishing import files_to_publish
    from psac.app.reporting.snapshot import read

    for folder in folders:
        if not (names := files_to_publish(folder)):
            continue
        if read(folder).is_proved:
            text = f"you may also publish {', '.join(names)}."
        else:
            text = f"{', '.join(names)} belong to the page. Read its warnings before you publish."
        errors.print(
            f"Of {escape(str(folder))}, {text} Keep all other files with the data.", soft_wrap=True
        )


def _repeat_warnings(folders: list[Path]) -> None:
    """Prints what the report warns of, as the user may not open it."""
    from psac.app.reporting.head import warnings
    from psac.app.reporting.snapshot import read

    for folder in folders:
        for warning in warnings(read(folder)):
            errors.print(f"[yellow]{escape(f'{folder}: {warning}')}[/]", soft_wrap=True)
