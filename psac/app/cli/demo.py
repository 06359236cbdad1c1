"""`psac demo`: three clipping rules at the same budget in ten minutes, with a report to read.

Each rule trains the CNN of the paper on Fashion-MNIST for a few epochs at (3, 1e-5).  If
Fashion-MNIST cannot be fetched, the demo says so and uses the 8 x 8 digits.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.bar import Bar
from rich.markup import escape
from rich.table import Table

from psac.app.cli.console import as_typed, console, errors
from psac.app.cli.error_messages import code_of
from psac.app.cli.progress import clock, price
from psac.app.reporting import numerals

if TYPE_CHECKING:
    from psac.app.training import Run

RULES = {"psac": "DP-PSAC", "abadi": "DP-SGD", "auto_s": "Auto-S"}
BAR = 32


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
    epochs: Annotated[
        float, typer.Option(help="Number of epochs for each rule, on Fashion-MNIST.")
    ] = 5,
) -> None:
    """Train DP-PSAC, DP-SGD and Auto-S on Fashion-MNIST and compare them in a report."""
    from psac.app.reporting import report

    name, settings = _data(epochs)
    try:
        runs = _trained(folder, name, settings)
    except KeyboardInterrupt as stop:
        again = shlex.join(["psac", "demo", "--folder", str(folder), "--epochs", f"{epochs:g}"])
        errors.print("[yellow]Stopped and saved.[/] To continue:")
        errors.print(f"  [bold]{escape(again)}[/]", soft_wrap=True)
        raise typer.Exit(code_of(stop)) from None
    console.print(_table(runs))
    first = report(next(iter(runs.values())).folder)
    side_by_side = report([run.folder for run in runs.values()], output=folder / "report.html")
    console.print(_pages({side_by_side: "compares all three", first: "the DP-PSAC run"}))


def _data(epochs: float) -> tuple[str, dict[str, Any]]:
    """The recipe and the settings that the demo changes."""
    from psac.app import data

    try:
        data.fetch("fashion-mnist")
    except data.DataNotFound as error:
        console.print(f"[yellow]Fashion-MNIST cannot be fetched: {escape(str(error))}[/]")
        console.print("[yellow]The demo uses the 8 x 8 digits of scikit-learn instead.[/]")
        return "digits-linear", {}
    return "fashion-mnist-cnn", {"epochs": epochs}


def _trained(folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Run]:
    """A run for each rule; only the rule and its own r differ."""
    from psac.app.cli.views import view_of
    from psac.app.training import Run, load_recipe, train

    runs = {}
    for rule, title in RULES.items():
        recipe = load_recipe(name, rule=rule, **settings)
        place = folder / f"{name}-{rule}"
        with view_of(console, title) as view:
            runs[title] = train(recipe, place, resume=Run(place).started, observer=view)
    return runs


def _table(runs: dict[str, Run]) -> Table:
    table = Table(
        title=f"\n[bold]{len(runs)} clipping rules at the same budget[/]",
        title_justify="left",
        caption="One run each, so small differences may be chance. `psac compare` repeats runs.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("rule")
    table.add_column("accuracy", justify="right")
    table.add_column("", width=BAR)
    for column in ("epsilon", "delta", "time"):
        table.add_column(column, justify="right")
    for title, run in runs.items():
        summary = run.summary()
        table.add_row(
            f"[bold]{title}[/]",
            f"{summary['accuracy']:.2%}",
            Bar(1.0, 0.0, summary["accuracy"], width=BAR, color="green"),
            price(summary["epsilon"]),
            numerals.delta(summary["delta"]),
            clock(summary["seconds"]),
        )
    return table


def _pages(pages: dict[Path, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for page, about in pages.items():
        table.add_row("open", f"[bold]{escape(as_typed(page))}[/]", f"[dim]{about}[/]")
    return table
