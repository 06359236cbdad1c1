"""`psac recipes`: the list of built-in recipes, or the text of one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.table import Table

from psac.app.cli import completion
from psac.app.cli.console import console
from psac.app.cli.error_messages import typed
from psac.app.reporting import numerals


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Recipe to print as TOML: psac recipes NAME > mine.toml",
            show_default=False,
            autocompletion=completion.completer(completion.recipes),
        ),
    ] = None,
) -> None:
    """List the built-in recipes, or print one as TOML."""
    from psac.app.training.shipped import shipped_text

    if name is None:
        _list()
        return
    with typed():
        text = shipped_text(name)
    print(text, end="")


def _list() -> None:
    from psac.app.training import load_recipe, shipped

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in ("recipe", "data", "model"):
        table.add_column(column, no_wrap=True)
    for column in ("epsilon", "delta", "epochs"):
        table.add_column(column, justify="right")
    for name in shipped():
        recipe = load_recipe(name)
        table.add_row(
            f"[bold]{name}[/]",
            recipe.data,
            recipe.model,
            f"{recipe.epsilon:g}",
            "1/(10N)" if recipe.delta is None else numerals.delta(recipe.delta),
            f"{recipe.epochs:g}",
        )
    console.print(table)
