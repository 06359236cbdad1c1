"""The first ten minutes: three clipping rules on one budget, and a page to read.

Fashion-MNIST by the paper's network, to (3, 1e-5), a few epochs of each rule.  Where Fashion-MNIST
cannot be had, the 8 x 8 digits stand in, and the demo says so.  A demo that was stopped goes on.
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
from psac.app.cli.mistakes import code_of
from psac.app.cli.progress import clock, price
from psac.app.reporting import numerals

if TYPE_CHECKING:
    from psac.app.training import Run

RULES = {"psac": "DP-PSAC", "abadi": "DP-SGD", "auto_s": "Auto-S"}
BAR = 32


def demo(
    folder: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/demo"),
    epochs: Annotated[float, typer.Option(help="Of each rule, on Fashion-MNIST.")] = 5,
) -> None:
    """DP-PSAC beside DP-SGD and Auto-S on Fashion-MNIST, with a page to read."""
    from psac.app.reporting import report

    name, settings = _data(epochs)
    try:
        runs = _trained(folder, name, settings)
    except KeyboardInterrupt as stop:
        again = shlex.join(["psac", "demo", "--folder", str(folder), "--epochs", f"{epochs:g}"])
        errors.print("[yellow]Stopped, and saved.[/] To go on:")
        errors.print(f"  [bold]{escape(again)}[/]", soft_wrap=True)
        raise typer.Exit(code_of(stop)) from None
    console.print(_table(runs))
    first = report(next(iter(runs.values())).folder)
    side_by_side = report([run.folder for run in runs.values()], output=folder / "report.html")
    console.print(_pages({side_by_side: "all three side by side", first: "the DP-PSAC run"}))


def _data(epochs: float) -> tuple[str, dict[str, Any]]:
    """The recipe, and what is changed in it."""
    from psac.app import data

    try:
        data.fetch("fashion-mnist")
    except data.DataNotFound as error:
        console.print(f"[yellow]Fashion-MNIST cannot be had: {escape(str(error))}[/]")
        console.print("[yellow]The 8 x 8 digits of scikit-learn stand in for it.[/]")
        return "digits-linear", {}
    return "fashion-mnist-cnn", {"epochs": epochs}


def _trained(folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Run]:
    """A run for each rule, which differ in nothing but the rule and its own r."""
    from psac.app.cli.view import view_of
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
        title=f"\n[bold]One budget, {len(runs)} rules[/]",
        title_justify="left",
        caption="One run each: small differences may be luck. `psac compare` repeats them.",
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
        found = run.summary()
        table.add_row(
            f"[bold]{title}[/]",
            f"{found['accuracy']:.2%}",
            Bar(1.0, 0.0, found["accuracy"], width=BAR, color="green"),
            price(found["epsilon"]),
            numerals.delta(found["delta"]),
            clock(found["seconds"]),
        )
    return table


def _pages(pages: dict[Path, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for page, about in pages.items():
        table.add_row("open", f"[bold]{escape(as_typed(page))}[/]", f"[dim]{about}[/]")
    return table
