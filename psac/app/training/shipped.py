"""Recipes that come with the library: the files in `psac/app/training/recipes`.

`shipped()` lists their names; `load_recipe(name)` reads one, or a file of the user's own.  A file
says which of its settings are those of the DP-PSAC paper (arXiv:2212.00328).

>>> "fashion-mnist-cnn" in shipped()
True
>>> load_recipe("fashion-mnist-cnn", epochs=2).epochs
2.0
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from psac.app.training.recipe import Recipe, did_you_mean

FOLDER = Path(__file__).parent / "recipes"


def shipped() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def shipped_text(name: str) -> str:
    """The file of the shipped recipe of this name, comments included."""
    if name not in shipped():
        raise ValueError(_unknown(name, ""))
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def load_recipe(name: str | os.PathLike[str], **overrides: Any) -> Recipe:
    """The shipped recipe of this name, or the one in the file at this path."""
    if str(name) in shipped():
        return Recipe.from_toml(FOLDER / f"{name}.toml", **overrides)
    if Path(name).suffix != ".toml":
        raise ValueError(_unknown(str(name), "; or give the path of a .toml file"))
    return Recipe.from_toml(name, **overrides)


def _unknown(name: str, otherwise: str) -> str:
    known = shipped()
    return (
        f"recipe '{name}' is unknown. Known: {', '.join(known)}{otherwise}."
        f"{did_you_mean(name, known)}"
    )
