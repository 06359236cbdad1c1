"""The built-in recipes: the files in `psac/app/training/recipes`.

`shipped()` lists their names; `load_recipe` reads one of them, or your own file; `recipe_for` finds
the one for a data set and a model.  Each file says
which of its settings are from the DP-PSAC paper (arXiv:2212.00328).

>>> "fashion-mnist-cnn" in shipped()
True
>>> load_recipe("fashion-mnist-cnn", epochs=2).epochs
2.0
"""

from __future__ import annotations

import os
from collections.abc import Mapping
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


def recipe_for(settings: Mapping[str, Any]) -> str | None:
    """The one built-in recipe with this data and this model, by LoRA or not; None without one.

    >>> recipe_for({"data": "sst2", "model": "minilm", "model_settings": {"lora": 4}})
    'sst2-minilm-lora'
    """

    def kind(data: Any, model: Any, model_settings: Mapping[str, Any]) -> tuple[Any, ...]:
        return data, model, "lora" in model_settings

    wanted = (settings.get("data"), settings.get("model"), settings.get("model_settings", {}))
    fitting = []
    for name in shipped():
        recipe = load_recipe(name)
        if kind(recipe.data, recipe.model, recipe.model_settings) == kind(*wanted):
            fitting.append(name)
    return fitting[0] if len(fitting) == 1 else None


def load_recipe(name: str | os.PathLike[str], **overrides: Any) -> Recipe:
    """The built-in recipe of this name, or the recipe in the file at this path."""
    if str(name) in shipped():
        return Recipe.from_toml(FOLDER / f"{name}.toml", **overrides)
    if Path(name).suffix != ".toml":
        if Path(name).exists():
            raise ValueError(f"'{name}' is not a recipe. To train on it, pass it as --data.")
        raise ValueError(f"{unknown('recipe', name, shipped())} Or give the path of a .toml file.")
    return Recipe.from_toml(name, **overrides)
