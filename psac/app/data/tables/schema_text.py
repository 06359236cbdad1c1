"""A schema as TOML, for its owner to edit.

Keys are dotted (`ranges.age = [0, 120]`), so that the lines of a column stay together and also fit
below `[data_settings]` in a recipe.  Guarantees: every value that was read off the records is
marked, and its column is listed as `unconfirmed`, so that the schema is refused until its owner has
edited that list; `psac.app.data.tables.schema` reads the text.

>>> print(lines_of("age", Guess(kind="number", range=(0.0, 120.0)), Cells.of(["3", ""]))[0])
ranges.age = [0, 120]  # seen in private data: confirm that it is public, or replace it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from psac.app.data.classes import SEEN
from psac.app.data.tables.cells import Cells, date_of
from psac.app.data.tables.columns import CATEGORIES, DATE, INDICATOR, NUMBER, Column, faults_of
from psac.app.data.tables.guess import IGNORED, Guess, classes_seen, guess
from psac.app.data.tables.reader import Table
from psac.app.toml import quoted_key, string, strings


def numbers(values: Sequence[float]) -> str:
    """A list of numbers, whole ones without a point.

    >>> numbers([0.0, 0.5])
    '[0, 0.5]'
    """
    return f"[{', '.join(str(int(v)) if v == int(v) else repr(v) for v in values)}]"


def lines_of(name: str, guess: Guess, cells: Cells, *, seen: bool = True) -> list[str]:
    """The lines of a column; marked if its values were `seen`, and none if it is ignored."""
    if guess.kind == IGNORED:
        return []
    mark = f"  # {SEEN}" if seen else ""
    lines = [f"{_value(name, guess)}{mark}"]
    if guess.rare:
        values = "1 rare value was" if guess.rare == 1 else f"{guess.rare} rare values were"
        lines.insert(0, f"# {values} left out; a value that is not listed becomes all zeros")
    if guess.usual is not None:
        low, high = numbers(guess.usual)[1:-1].split(", ")
        lines.insert(
            0,
            f"# nearly all values are between {low} and {high}; a wide range is hard to learn from",
        )
    if guess.kind in (NUMBER, DATE) and cells.missing().any():
        lines.append(f'missing.{quoted_key(name)} = "{INDICATOR}"  # some cells are empty; {SEEN}')
    return lines


def _value(name: str, guess: Guess) -> str:
    if guess.kind == NUMBER:
        return f"ranges.{quoted_key(name)} = {numbers(guess.range)}"
    if guess.kind == DATE:
        form = [guess.form] if guess.form else []
        return f"dates.{quoted_key(name)} = {strings([*map(date_of, guess.range), *form])}"
    return f"categories.{quoted_key(name)} = {strings(guess.categories)}"


def ignore_lines(ignored: Iterable[str], reasons: dict[str, str]) -> list[str]:
    """One line for all columns that are left out, after comments that say why."""
    names = [*ignored, *reasons]
    comments = [f"# {string(name)}: {reason}" for name, reason in reasons.items()]
    return [*comments, f"ignore = {strings(names)}"] if names else []


# ---- A whole schema

HEADING = """\
# Schema of {file}. Every value here must be public knowledge.
#
# Values marked "seen in private data" were read off the records. For each of them, confirm that it
# is public or replace it. Then remove the column from the list `unconfirmed` below.
#
#   ranges.X = [lowest, highest]        numbers; values outside are clamped
#   dates.X = ["2015-01-01", "2026-01-01"]
#   categories.X = ["a", "b"]           a value that is not listed becomes all zeros
#   missing.X = "indicator"             what empty cells mean; or a constant that replaces them
#   ignore = ["X"]                      columns to leave out
#
# If the range of a column is not public, write ranges.X = "private" (or categories.X = "private").
# psac then releases it with noise, for a share of the budget: --data-settings privacy_share=0.2
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a column is, and whether that was `seen` in the records or stated by the owner."""

    guess: Guess
    seen: bool = True


def guessed(table: Table, label: str) -> dict[str, Answer]:
    """Answers that are guessed from the records."""
    names = [name for name in table.columns if name != label]
    return {name: Answer(guess=guess(table.columns[name])) for name in names}


def schema_text(
    table: Table, label: str, answers: dict[str, Answer], classes: list[str] | None = None
) -> str:
    """The schema; classes are read off the records if they are None."""
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
    """Cells that do not fit the kind of their column, in words."""
    columns = {
        name: Column(kind=a.guess.kind, form=a.guess.form, missing="indicator")
        for name, a in answers.items()
        if a.guess.kind not in (IGNORED, CATEGORIES)
    }
    return faults_of(table, columns)
