"""`psac data list` and `psac data get`: data sets that psac can fetch or read."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from psac.app.cli import completion
from psac.app.cli.console import console, errors
from psac.app.cli.error_messages import typed


def list_data() -> None:
    """List the data sets that psac can fetch or read."""
    from psac.app import data

    table = Table("name", "content", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("train", "test", "download"):
        table.add_column(column, justify="right")
    table.add_column("cached")
    for name in data.names():
        info = data.info(name)
        table.add_row(
            f"[bold]{name}[/]",
            info.title.partition(": ")[2],
            *(f"{info.records[split]:,}" for split in ("train", "test")),
            f"{info.megabytes:.0f} MB",
            "[green]yes[/]" if info.obtained else "",
        )
    console.print(table)


def get_data(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a data set (psac data list).",
            autocompletion=completion.completer(completion.data_sets),
        ),
    ],
) -> None:
    """Fetch a data set into the cache and print its folder."""
    from psac.app import data

    with typed():
        data.info(name)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        task = bars.add_task(f"fetching {name}", total=None)

        def show(what: str, done: int, total: int | None) -> None:
            bars.update(task, description=escape(what), completed=done, total=total)

        folder = data.fetch(name, progress=show)
    console.print(str(folder), markup=False, soft_wrap=True)
