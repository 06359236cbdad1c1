"""The commands of `psac`, each a thin layer over the library.

Exit codes: 0 done, 2 usage, 1 failure.  Errors are one message without a traceback, unless --debug
is given before the command.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import psac

app = typer.Typer(no_args_is_help=True, help="Train neural networks on private data.")
data_app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, and fetching.")
app.add_typer(data_app, name="data")
console = Console()
state = {"debug": False}


@app.callback()
def options(
    debug: Annotated[bool, typer.Option(help="Show tracebacks of errors.")] = False,
) -> None:
    state["debug"] = debug


@app.command()
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


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs: one, or several to compare.")
    ],
    output: Annotated[Path | None, typer.Option(help="Where the page goes.")] = None,
    publish: Annotated[bool, typer.Option(help="Leave out what is not private.")] = False,
) -> None:
    """Make the page of a run, or of several side by side."""
    from psac.reporting import report as write

    console.print(str(write(runs if len(runs) > 1 else runs[0], output=output, publish=publish)))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/demo"),
    epochs: Annotated[float, typer.Option()] = 5,
) -> None:
    """DP-PSAC beside DP-SGD and Auto-S on Fashion-MNIST, with a page to read."""
    from psac.cli.demo import demo as shown

    page = shown(console, folder, epochs)
    console.print(f"All three side by side: [bold]{page}[/]")


@app.command()
def calibrate(
    epsilon: float,
    delta: Annotated[float, typer.Option()],
    sampling_rate: Annotated[float, typer.Option(help="Expected batch size / records.")],
    steps: Annotated[int, typer.Option()],
) -> None:
    """The noise multiplier for a budget, under Poisson sampling."""
    noise = psac.calibrate(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps)
    console.print(f"{noise:.6g}")


@app.command("epsilon")
def spent(
    noise_multiplier: float,
    delta: Annotated[float, typer.Option()],
    sampling_rate: Annotated[float, typer.Option(help="Expected batch size / records.")],
    steps: Annotated[int, typer.Option()],
) -> None:
    """What training costs, under Poisson sampling."""
    found = psac.epsilon(
        noise_multiplier=noise_multiplier, delta=delta, sampling_rate=sampling_rate, steps=steps
    )
    console.print(f"{found:.6g}")


@app.command()
def audit() -> None:
    """Attack the training step of this installation: does it keep what it promises?"""
    result = psac.audit()
    console.print(str(result))
    if not result.passed:
        raise typer.Exit(1)


@app.command()
def recipes() -> None:
    """The recipes that are shipped."""
    from psac.training import load_recipe, shipped

    table = Table("recipe", "data", "model", "epsilon", "epochs")
    for name in shipped():
        recipe = load_recipe(name)
        table.add_row(name, recipe.data, recipe.model, f"{recipe.epsilon}", f"{recipe.epochs}")
    console.print(table)


@data_app.command("list")
def data_list() -> None:
    """Data sets that psac can fetch or read."""
    from psac import data

    table = Table("name", "what", "records", "here")
    for name in data.names():
        info = data.info(name)
        table.add_row(
            name,
            info.title,
            ", ".join(f"{split} {count:,}" for split, count in info.records.items()),
            "yes" if info.obtained else "",
        )
    console.print(table)


@data_app.command("get")
def data_get(name: str) -> None:
    """Fetch a data set into the cache."""
    from psac import data

    with console.status(f"fetching {name}"):
        path = data.fetch(name)
    console.print(str(path))


@app.command()
def version() -> None:
    """The version of psac."""
    console.print(psac.__version__)


def main() -> None:
    """The entry point: errors become messages and exit codes."""
    try:
        app()
    except KeyboardInterrupt as stop:
        folder: Any = getattr(stop, "folder", None)
        again = f" To go on: psac train ... --run {folder} --resume" if folder else ""
        console.print(f"[yellow]Stopped.{again}[/]")
        sys.exit(1)
    except (ValueError, TypeError, OSError, psac.PrivacyError, ImportError) as error:
        if state["debug"]:
            raise
        Console(stderr=True).print(f"[bold red]Error:[/] {error}", highlight=False)
        sys.exit(1)
