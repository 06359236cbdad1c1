"""The table of a recipe's settings in docs/command-line.md, from the code.

    python -m tests.docs.settings

prints what the test compares with, to put there when a setting was changed.
"""

from __future__ import annotations

import dataclasses

from psac.app.cli.recipe_options import SETTINGS
from psac.app.training.recipe import CHOICES, FLAGS, NEEDED, RANGES, TABLES, WHOLE, Recipe
from psac.sampling import SCHEMES

HEAD = ["| setting | default | values | |", "|---|---|---|---|"]
INTERVALS = {
    "(0, inf)": "above 0",
    "[0, inf)": "0 or above",
    "(0, 1)": "above 0 and below 1",
    "[0, 1)": "from 0 to below 1",
}
BUDGET = ("epsilon", "noise_multiplier")


def table() -> str:
    return "\n".join([*HEAD, *(_row(field) for field in dataclasses.fields(Recipe))]) + "\n"


def _row(field: dataclasses.Field) -> str:
    about = SETTINGS[field.name].about
    return f"| `{field.name}` | {_default(field)} | {_values(field.name)} | {about} |"


def _default(field: dataclasses.Field) -> str:
    if field.name in NEEDED:
        return "needed"
    if field.name in BUDGET:
        return "one of the two"
    if field.default in (None, dataclasses.MISSING):
        return SETTINGS[field.name].default or ""
    return f"`{str(field.default).lower() if field.name in FLAGS else field.default}`"


def _values(name: str) -> str:
    known = CHOICES.get(name) or (SCHEMES if name == "sampling" else None)
    if known is not None:
        return ", ".join(f"`{value}`" for value in sorted(known))
    if name in WHOLE:
        return f"an integer, {WHOLE[name]} or above"
    if name in RANGES:
        return f"a number {INTERVALS[RANGES[name]]}"
    if name in FLAGS:
        return "`true` or `false`"
    return "a table" if name in TABLES else "a text"


if __name__ == "__main__":
    print(table(), end="")
