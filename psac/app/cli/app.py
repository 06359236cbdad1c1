"""The commands of `psac`: one file each, and one line each here.

Errors are shown by error_messages.py; `psac --debug COMMAND` shows their tracebacks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import psac
from psac._starting import STOPPED
from psac.app.cli.audit import audit
from psac.app.cli.check import check
from psac.app.cli.compare import compare
from psac.app.cli.console import errors
from psac.app.cli.data import get_data, list_data
from psac.app.cli.demo import demo
from psac.app.cli.describe import describe
from psac.app.cli.error_messages import code_of, explain, readable_warnings
from psac.app.cli.predict import predict
from psac.app.cli.pricing import calibrate, epsilon
from psac.app.cli.recipes import recipes
from psac.app.cli.report import report
from psac.app.cli.sweep import sweep
from psac.app.cli.train import train
from psac.app.cli.version import version
from psac.app.training.recipe import OTHER_WORDS

DATA = "Data and recipes"
# By panel of --help.  To add one: its file with a plain function, an import above, a line here.
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Train": {
        "demo": demo,
        "train": train,
        "report": report,
        "predict": predict,
        "compare": compare,
        "sweep": sweep,
    },
    "Privacy": {
        "calibrate": calibrate,
        "epsilon": epsilon,
        "audit": audit,
        "check": check,
    },
    DATA: {
        "recipes": recipes,
        "data list": list_data,
        "data get": get_data,
        "data describe": describe,
    },
    "Help": {"version": version},
}
GROUPS = {  # commands of two words
    "data": "List and fetch data sets, and describe your own table.",
}
state = {"debug": False}


def _say_version(asked: bool) -> None:
    if asked:
        print(psac.__version__)
        raise typer.Exit


class Command(TyperCommand):
    """Explains a negative number where it is not allowed, instead of taking it for an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)  # parsing takes them away
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            name = str(getattr(error, "option_name", ""))
            _suggest(error, name, self.params)
            arguments = [each for each in self.params if each.param_type_name == "argument"]
            if not re.match(r"-[\d.]", name) or not arguments:
                raise
            value = next(word for word in words if word.startswith(name))
            least = "above 0" if arguments[0].name == "epsilon" else "0 or above"
            raise typer.BadParameter(
                f"{arguments[0].name} is {value}: it must be {least}."
            ) from error


def _suggest(error: Any, name: str, known: Iterable[Any]) -> None:
    """Suggests the name that psac uses for one of torch, Opacus or papers: --lr."""
    meant = f"--{OTHER_WORDS.get(name.lstrip('-').replace('-', '_'), '').replace('_', '-')}"
    if any(meant in each.opts for each in known):
        error.possibilities = [meant]


def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_say_version),
    ] = False,
) -> None:
    """Train neural networks with differential privacy."""
    state["debug"] = debug


def command_line() -> typer.Typer:
    context = {"help_option_names": ["-h", "--help"]}
    # A traceback must not show the values of variables, which may be those of records.
    hidden: dict[str, Any] = {"pretty_exceptions_show_locals": False}
    root = typer.Typer(no_args_is_help=True, callback=options, context_settings=context, **hidden)
    groups = {"": root}
    for group, about in GROUPS.items():
        groups[group] = typer.Typer(no_args_is_help=True, help=about)
        root.add_typer(groups[group], name=group, rich_help_panel=DATA)
    for panel, commands in COMMANDS.items():
        for words, function in commands.items():
            group, _, name = words.rpartition(" ")
            groups[group].command(name, cls=Command, rich_help_panel=panel)(function)
    return root


app = command_line()


def main(arguments: list[str] | None = None) -> None:
    """The entry point of `psac`."""
    run(app, "psac", arguments)


def run(app: typer.Typer, name: str, arguments: list[str] | None = None) -> None:
    """Runs a command line; errors become messages and exit codes."""
    try:
        with readable_warnings():
            app(arguments, prog_name=name)
    except KeyboardInterrupt as stop:
        errors.print(f"[yellow]{STOPPED}[/]")
        sys.exit(code_of(stop))
    except Exception as error:
        if state["debug"]:
            raise
        explain(error)
        sys.exit(1)
