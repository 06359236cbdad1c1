"""`psac data list` and `psac data get`: data sets and weights that psac can fetch or read."""

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
    """List the data sets that psac can fetch or read, and pretrained language models."""
    from psac.app import data
    from psac.app.data.store import obtained
    from psac.app.text.pretrained import PRETRAINED

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
    models = Table("model", "content", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("weights", "download"):
        models.add_column(column, justify="right")
    models.add_column("cached")
    for name, model in PRETRAINED.items():
        models.add_row(
            f"[bold]{name}[/]",
            model.title.partition(": ")[2],
            f"{model.parameters / 1e6:.0f} million",
            f"{model.megabytes:.0f} MB" if model.sources else "your own",
            "[green]yes[/]" if obtained(model) else "",
        )
    console.print(models)


def get_data(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a data set or a language model (psac data list).",
            autocompletion=completion.completer(completion.fetched),
        ),
    ],
) -> None:
    """Fetch a data set or pretrained weights into the cache and print the folder."""
    from psac.app import data
    from psac.app.text import pretrained

    is_model = name in pretrained.PRETRAINED
    with typed():
        if not is_model:
            data.info(name)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        task = bars.add_task(f"fetching {name}", total=None)

        def show(what: str, done: int, total: int | None) -> None:
            bars.update(task, description=escape(what), completed=done, total=total)

        fetch = pretrained.fetch if is_model else data.fetch
        folder = fetch(name, progress=show)
    console.print(str(folder), markup=False, soft_wrap=True)
