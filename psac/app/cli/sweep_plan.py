"""What a sweep was asked for, and the runs that follow from it.

`plan.json` in the sweep's folder holds both: what chance has drawn once stays, so that the same
command goes on with the same runs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psac.app.training import Job, Recipe

FILE = "plan.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What was asked for: `choices` of a grid, or `ranges` to draw from."""

    recipe: Recipe
    choices: dict[str, list[float]]
    ranges: dict[str, tuple[float, float]]
    expected_runs: float

    @classmethod
    def of(
        cls, name: str, tries: list[str], ranges: list[str], runs: float, settings: dict[str, Any]
    ) -> Plan:
        from psac.app.cli.settings import loaded
        from psac.app.training.splits import refuse_unknown_data

        if bool(tries) == bool(ranges):
            raise ValueError(
                "give --try (a grid, such as learning_rate=1,2,4) or --range (at random, such as "
                "learning_rate=0.1:10), one of them."
            )
        recipe = loaded(name, settings)
        refuse_unknown_data(recipe)
        choices = dict(_numbers(text, ",") for text in tries)
        ends = dict(_numbers(text, ":") for text in ranges)
        for name, values in ends.items():
            if len(values) != 2:
                raise ValueError(f"--range {name} has {len(values)} numbers: give LOW:HIGH.")
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
        """Those of this sweep; what chance said once is written down, and holds."""
        from psac.app.training import Recipe
        from psac.app.training.run import read_json, write_json
        from psac.app.training.search import drawn, grid

        asked = self.to_json()
        if (place / FILE).exists():
            known = read_json(place / FILE)
            if known["asked"] != asked:
                raise ValueError(f"{place} holds another sweep. Take another --folder.")
            return [Recipe.from_settings(settings) for settings in known["recipes"]]
        if self.choices:
            found = grid(self.recipe, self.choices)
        else:
            found = drawn(self.recipe, self.ranges, expected_runs=self.expected_runs)
        place.mkdir(parents=True, exist_ok=True)
        recipes = [dataclasses.asdict(recipe) for recipe in found]
        write_json(place / FILE, {"asked": asked, "recipes": recipes})
        return found

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
        raise ValueError(f"'{text}' is not of the form {form}, with numbers.") from error
