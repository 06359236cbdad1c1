"""A schema of a table, to be edited by its owner: what `psac data describe` writes.

`guessed` takes everything from the records; an `Answer` for a column is the owner's own word on it.
Guarantees: every value that was read off the records is marked in the text, and its column is
listed as `unconfirmed`, so that the schema does not train before its owner has taken it off that
list; the text is a schema that `psac.app.data.schema` reads.
"""

from __future__ import annotations

import dataclasses

from psac.app.data.columns import CATEGORIES, Column, faults_of
from psac.app.data.guessing import IGNORED, Guess, classes_seen, guess
from psac.app.data.reading import Table
from psac.app.data.toml import string, strings
from psac.app.data.writing import SEEN, ignore_lines, lines_of

HEADING = """\
# What psac may know of {file}. Each value below must be public knowledge:
# what is marked as seen in private data is not, before you have confirmed or replaced it.
# Then take its column off the list `unconfirmed`.
#
#   ranges.X = [lowest, highest]        values beyond are clamped
#   dates.X = ["2015-01-01", "2026-01-01"]
#   categories.X = ["a", "b"]           a value that is not listed is all zeros
#   missing.X = "indicator"             or a constant, for empty cells
#   ignore = ["X"]                      columns that are left out
#
# ranges.X = "private" and categories.X = "private" release them with noise instead, for a share of
# the budget: privacy_share = 0.2 in data_settings of the recipe.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a column is, and whether that was `seen` in the records."""

    guess: Guess
    seen: bool = True


def guessed(table: Table, label: str) -> dict[str, Answer]:
    """By the records alone."""
    names = [name for name in table.columns if name != label]
    return {name: Answer(guess=guess(table.columns[name])) for name in names}


def schema_text(
    table: Table, label: str, answers: dict[str, Answer], classes: list[str] | None = None
) -> str:
    """The schema; classes are read off the records if they are not given."""
    seen = [label] if classes is None else []
    seen += [name for name, a in answers.items() if a.seen and a.guess.kind != IGNORED]
    shown = classes_seen(table.columns[label]) if classes is None else classes
    mark = f"  # {SEEN}" if classes is None else ""
    ignored = {name: a.guess.reason for name, a in answers.items() if a.guess.kind == IGNORED}
    parts = [
        HEADING.format(file=table.place.rpartition("/")[2]),
        f"label = {string(label)}\nclasses = {strings(shown)}{mark}\n",
        *(["\n".join(ignore_lines([], ignored)) + "\n"] if ignored else []),
        f"unconfirmed = {strings(seen)}\n",
    ]
    for name, answer in answers.items():
        lines = lines_of(name, answer.guess, table.columns[name], seen=answer.seen)
        parts += ["\n".join(lines) + "\n"] if lines else []
    return "\n".join(parts)


def bad_cells(table: Table, answers: dict[str, Answer]) -> list[str]:
    """Cells that are nothing of what their column is, in words for the owner."""
    columns = {
        name: Column(kind=a.guess.kind, form=a.guess.form, missing="indicator")
        for name, a in answers.items()
        if a.guess.kind not in (IGNORED, CATEGORIES)
    }
    return faults_of(table, columns)
