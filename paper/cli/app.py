"""The commands of `python -m paper`: one line each here."""

from __future__ import annotations

from collections.abc import Callable

import typer

from paper.cli.paper import TITLES, everything, figure, page
from paper.cli.table2 import table2
from paper.cli.theory import theory
from psac.app.cli.app import run

COMMANDS: dict[str, Callable[..., None]] = {
    **{name: figure(name) for name in TITLES},
    "theory": theory,
    "table2": table2,
    "all": everything,
    "page": page,
}


def assembled() -> typer.Typer:
    whole = typer.Typer(
        no_args_is_help=True,
        help="Figures and tables of the DP-PSAC paper, made anew.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, function in COMMANDS.items():
        whole.command(name)(function)
    return whole


app = assembled()


def main(arguments: list[str] | None = None) -> None:
    """The entry point: errors become messages and exit codes."""
    run(app, "python -m paper", arguments)
