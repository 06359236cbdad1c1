"""`psac recipes`: the recipes that are shipped."""

from __future__ import annotations

from rich.table import Table

from psac.cli.console import console


def recipes() -> None:
    """The recipes that are shipped."""
    from psac.training import load_recipe, shipped

    table = Table("recipe", "data", "model", "epsilon", "epochs")
    for name in shipped():
        recipe = load_recipe(name)
        table.add_row(name, recipe.data, recipe.model, f"{recipe.epsilon}", f"{recipe.epochs}")
    console.print(table)
