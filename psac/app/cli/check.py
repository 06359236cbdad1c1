"""`psac check`: how the engine would train your model, before you train it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from psac.app.cli.console import console
from psac.app.training.own_model import executed, function_in, needed

if TYPE_CHECKING:
    from psac.gradients.check import Report

FORM = "my_file.py:build_model or my_module:build_model"
STYLES = {"NO": "bold red", "NOT SHOWN": "bold red", "yes, slowly": "yellow"}
GIVES = (
    "It must return (model, batch), where batch is (inputs, labels) for a classifier, or "
    "(model, loss, batch), where loss(model, *batch) is given a batch of one record and returns "
    "its loss, as in private.step."
)


def check(
    target: Annotated[
        str,
        typer.Argument(
            help=f"Function without arguments: {FORM}.",
            metavar="FILE:FUNCTION",
            show_default=False,
        ),
    ],
) -> None:
    """Check whether psac can train your model privately, and how.

    For a classifier, the function returns (model, batch), where batch is (inputs, labels); the loss
    is the cross-entropy. Otherwise it returns (model, loss, batch), where loss(model, *batch) takes
    a batch of one record and returns its loss, as in private.step. A few records of random numbers
    are enough. The exit code is 1 if the model cannot be trained privately.
    """
    import psac

    report = psac.check(*_parts(_function(target)(), target))
    _show(report)
    if not report.ok:
        raise typer.Exit(1)


def _function(target: str) -> Callable[[], Any]:
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise typer.BadParameter(f"'{target}' does not name a function. Pass {FORM}.")
    try:
        function = function_in(_module(place), name, place)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if arguments := needed(function):
        raise typer.BadParameter(
            f"{target} needs {', '.join(arguments)}, but it is called without arguments. {GIVES}"
        )
    return function


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.insert(0, "")  # as `python -m` finds modules where the user is
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if (
                error.name != place.partition(".")[0]
            ):  # the module exists, but one that it imports does not
                raise
            raise typer.BadParameter(f"there is no module '{place}'. Pass {FORM}.") from error
        finally:
            sys.path.remove("")
    path = Path(place)
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}. Pass {FORM}.")
    return executed(path)


def _parts(returned: Any, target: str) -> tuple[Any, Any, Any]:
    """Model, loss function, batch."""
    from torch import nn

    parts: tuple[Any, ...] = returned if isinstance(returned, tuple) else (returned,)
    if not isinstance(parts[0], nn.Module) or len(parts) not in (2, 3):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise typer.BadParameter(f"{target} returned ({kinds}). {GIVES}")
    if len(parts) == 3:
        return parts
    model, batch = parts
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise typer.BadParameter(
            f"{target} returned a batch of type {type(batch).__name__}. {GIVES}"
        )
    return model, _cross_entropy, batch


def _cross_entropy(model: Any, inputs: Any, labels: Any) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(model(inputs), labels)


def _show(report: Report) -> None:
    from psac.gradients.check import cells

    console.print(f"[bold]{escape(report.title())}[/]")
    if report.rows:
        table = Table("parameter", "shape", "rule", "norms by")
        for row in report.rows:
            table.add_row(*(escape(cell) for cell in cells(row)))
        console.print(table)
    facts = Table.grid(padding=(0, 2))
    for name, value in report.facts():
        facts.add_row(name, escape(value), style=STYLES.get(value))
    console.print(facts)
