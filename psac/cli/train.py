"""`psac train`: a private model from a recipe, and its report page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psac.cli.console import console


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe (psac recipes) or a TOML file.")],
    run: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in that folder.")] = False,
    rule: Annotated[str | None, typer.Option(help="psac, abadi, auto_s, nsgd, ...")] = None,
    epsilon: Annotated[float | None, typer.Option()] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1 / (10 records).")] = None,
    epochs: Annotated[float | None, typer.Option()] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected size of a batch.")] = None,
    learning_rate: Annotated[float | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option(help="Repeatable, and NOT private.")] = None,
) -> None:
    """Train a private model, and write its report page."""
    from psac.cli.view import View
    from psac.reporting import report
    from psac.training import load_recipe
    from psac.training import train as trained

    given = {
        "rule": rule,
        "epsilon": epsilon,
        "delta": delta,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    folder = run if run is not None else Path("runs") / Path(recipe).stem
    with View(console, Path(recipe).stem) as view:
        result = trained(load_recipe(recipe, **settings), folder, resume=resume, observer=view)
    summary = result.summary()
    console.print(
        f"accuracy {summary['accuracy']:.2%} at epsilon {summary['epsilon']:.3f}, "
        f"delta {summary['delta']:.1e}. Report: [bold]{report(folder)}[/]"
    )
