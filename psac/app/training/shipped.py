"""The built-in recipes: the files in `psac/app/training/recipes`.

`shipped()` lists their names; `load_recipe` reads one of them, or your own file.  Each file says
which of its settings are from the DP-PSAC paper (arXiv:2212.00328).

>>> "fashion-mnist-cnn" in shipped()
True
>>> load_recipe("fashion-mnist-cnn", epochs=2).epochs
2.0
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from psac.app.training.recipe import Recipe
from psac.checks import unknown

FOLDER = Path(__file__).parent / "recipes"


def shipped() -> list[str]:
    """The names of the built-in recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def shipped_text(name: str) -> str:
    """The text of a built-in recipe, with its comments."""
    if name not in shipped():
        raise ValueError(unknown("recipe", name, shipped()))
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def load_recipe(name: str | os.PathLike[str], **overrides: Any) -> Recipe:
    """The built-in recipe of this name, or the recipe in the file at this path."""
    if str(name) in shipped():
        return Recipe.from_toml(FOLDER / f"{name}.toml", **overrides)
    if Path(name).suffix != ".toml":
        if Path(name).exists():
            raise ValueError(f"'{name}' is not a recipe. To train on it, pass it as --data.")
        raise ValueError(f"{unknown('recipe', name, shipped())} Or give the path of a .toml file.")
    return Recipe.from_toml(name, **overrides)
