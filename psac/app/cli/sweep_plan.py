"""The settings of a sweep and the runs that follow from them.

`plan.json` in the folder of the sweep holds both, so that the same command continues with the same
random settings.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psac.app.training import Job, Recipe

FILE = "plan.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """Either `choices` of a grid, or `ranges` for random search."""

    recipe: Recipe
    choices: dict[str, list[float]]
    ranges: dict[str, tuple[float, float]]
    expected_runs: float

    @classmethod
    def of(
        cls, name: str, tries: list[str], ranges: list[str], runs: float, settings: dict[str, Any]
    ) -> SweepPlan:
        from psac.app.cli.recipe_options import loaded
        from psac.app.training.own_data import asks_for_noise
        from psac.app.training.splits import refuse_unknown_data

        if bool(tries) == bool(ranges):
            raise ValueError(
                "give either --try for a grid, such as learning_rate=1,2,4, or --range for random "
                "search, such as learning_rate=0.1:10."
            )
        recipe = loaded(name, settings)
        refuse_unknown_data(recipe)
        choices = dict(_numbers(text, ",") for text in tries)
        ends = dict(_numbers(text, ":") for text in ranges)
        for name, values in ends.items():
            if len(values) != 2:
                raise ValueError(f"--range {name} has {len(values)} numbers. Give LOW:HIGH.")
        if ends and asks_for_noise(recipe):
            raise ValueError(
                "a random search (--range) cannot be priced if every run also releases ranges or "
                "categories with noise. State them in the schema, or try a grid (--try)."
            )
        pairs = {name: (values[0], values[1]) for name, values in ends.items()}
        return cls(recipe=recipe, choices=choices, ranges=pairs, expected_runs=runs)

    @property
    def names(self) -> list[str]:
        return [*self.choices, *self.ranges]

    def jobs(self, place: Path) -> list[Job]:
        from psac.app.training import Job

        def label(recipe: Recipe) -> str:
            return "-".join(f"{name}{getattr(recipe, name):g}" for name in self.names)

        recipes = enumerate(self.recipes(place), 1)
        return [Job(recipe, place / f"{number:02}-{label(recipe)}") for number, recipe in recipes]

    def recipes(self, place: Path) -> list[Recipe]:
        """The recipes of this sweep; random ones are drawn once and kept in the file."""
        from psac.app.training import Recipe
        from psac.app.training.run import read_json, write_json
        from psac.app.training.search import drawn, grid

        settings = self.to_json()
        if (place / FILE).exists():
            known = read_json(place / FILE)
            if known["asked"] != settings:
                raise ValueError(f"{place} holds another sweep. Choose another --folder.")
            return [Recipe.from_settings(each) for each in known["recipes"]]
        if self.choices:
            recipes = grid(self.recipe, self.choices)
        else:
            recipes = drawn(self.recipe, self.ranges, expected_runs=self.expected_runs)
        place.mkdir(parents=True, exist_ok=True)
        contents = [dataclasses.asdict(recipe) for recipe in recipes]
        write_json(place / FILE, {"asked": settings, "recipes": contents})
        return recipes

    def to_json(self) -> dict[str, Any]:
        ranges = {name: list(ends) for name, ends in self.ranges.items()}
        return {**dataclasses.asdict(self), "ranges": ranges}


def _numbers(text: str, separator: str) -> tuple[str, list[float]]:
    """`r=0.1,0.2` as a name and numbers."""
    name, _, rest = text.partition("=")
    try:
        return name, [float(number) for number in rest.split(separator)]
    except ValueError as error:
        form = f"NAME=A{separator}B"
        raise ValueError(f"'{text}' must have the form {form}, with numbers.") from error
