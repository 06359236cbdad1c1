"""The commands of `psac`: one file each, and one line each here.

Exit codes: 0 done, 2 usage, 1 failure.  Errors are one message without a traceback, unless --debug
is given before the command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

import psac
from psac.cli.audit import audit
from psac.cli.budget import calibrate, epsilon
from psac.cli.console import console, errors
from psac.cli.data import get_data, list_data
from psac.cli.demo import demo
from psac.cli.paper import TITLES, everything, figure, page
from psac.cli.recipes import recipes
from psac.cli.report import report
from psac.cli.table2 import table2
from psac.cli.theory import theory
from psac.cli.train import train
from psac.cli.version import version

# By the panel of --help.  To add one: its file with a plain function, an import above, a line here.
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Train": {
        "demo": demo,
        "train": train,
        "report": report,
    },
    "Privacy": {
        "calibrate": calibrate,
        "epsilon": epsilon,
        "audit": audit,
    },
    "What there is": {
        "recipes": recipes,
        "data list": list_data,
        "data get": get_data,
        "version": version,
    },
    "The paper": {
        **{f"paper {name}": figure(name) for name in TITLES},
        "paper table2": table2,
        "paper all": everything,
        "paper page": page,
        "theory": theory,
    },
}
GROUPS = {  # commands of two words
    "data": "Data sets: what there is, and fetching.",
    "paper": "Figures and tables of the DP-PSAC paper, made anew.",
}
state = {"debug": False}


def options(
    debug: Annotated[bool, typer.Option(help="Show tracebacks of errors.")] = False,
) -> None:
    """Train neural networks on private data."""
    state["debug"] = debug


def assembled() -> typer.Typer:
    """The whole command line."""
    whole = typer.Typer(no_args_is_help=True, callback=options)
    places = {"": whole}
    for group, about in GROUPS.items():
        places[group] = typer.Typer(no_args_is_help=True, help=about)
        whole.add_typer(places[group], name=group)
    for panel, commands in COMMANDS.items():
        for words, function in commands.items():
            group, _, name = words.rpartition(" ")
            places[group].command(name, rich_help_panel=panel)(function)
    return whole


app = assembled()


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
        errors.print(f"[bold red]Error:[/] {error}")
        sys.exit(1)
