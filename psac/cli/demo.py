"""The first ten minutes: three clipping rules on one budget, and a page to read.

Fashion-MNIST by the paper's network, to (3, 1e-5), a few epochs of each rule.  Where Fashion-MNIST
cannot be had, the 8 x 8 digits stand in, and the demo says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from psac.cli.console import console

if TYPE_CHECKING:
    from psac.training import Run

RULES = {"psac": "DP-PSAC", "abadi": "DP-SGD", "auto_s": "Auto-S"}


def demo(
    folder: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/demo"),
    epochs: Annotated[float, typer.Option(help="Of each rule.")] = 5,
) -> None:
    """DP-PSAC beside DP-SGD and Auto-S on Fashion-MNIST, with a page to read."""
    from psac.cli.view import view_of
    from psac.reporting import report
    from psac.training import Run, load_recipe, train

    name, settings = _recipe(console, epochs)
    runs = {}
    for rule, title in RULES.items():
        # r is each rule's own; everything else is the same for all.
        recipe = load_recipe(name, rule=rule, **settings[rule])
        place = folder / f"{name}-{rule}"
        with view_of(console, title) as view:
            runs[title] = train(recipe, place, resume=Run(place).started, observer=view)
    console.print(_table(runs))
    pages = [report(run.folder) for run in runs.values()]
    compared = report([run.folder for run in runs.values()], output=folder / "report.html")
    console.print(f"The page of the DP-PSAC run: [bold]{pages[0]}[/]")
    console.print(f"All three side by side: [bold]{compared}[/]")


def _recipe(console: Console, epochs: float) -> tuple[str, dict[str, dict]]:
    from psac import data

    try:
        data.fetch("fashion-mnist")
    except data.DataNotFound as error:
        console.print(f"[yellow]Fashion-MNIST cannot be had: {error}[/]")
        console.print("[yellow]The 8 x 8 digits of scikit-learn stand in for it.[/]")
        shared = {"psac": {}, "abadi": {"r": None}, "auto_s": {"r": 0.01}}
        return "digits-linear", shared
    shared = {"epochs": epochs}
    return "fashion-mnist-cnn", {
        "psac": shared,
        "abadi": {**shared, "r": None},
        "auto_s": {**shared, "r": 0.01},
    }


def _table(runs: dict[str, Run]) -> Table:
    table = Table(title="One budget, three rules")
    for column in ("rule", "accuracy", "epsilon", "delta", "seconds"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for title, run in runs.items():
        summary = run.summary()
        table.add_row(
            title,
            f"{summary['accuracy']:.2%}",
            f"{summary['epsilon']:.3f}",
            f"{summary['delta']:.1e}",
            f"{summary['seconds']:.0f}",
        )
    return table
