"""A schema as lines of TOML, one or more for each column, to be read and edited by its owner.

Keys are dotted (`ranges.age = [0, 120]`), so that the lines of a column stand together, and fit
below `[data_settings]` in a recipe as they fit in a file of their own.  Every value that was read
off the records is marked.

>>> print(lines_of("age", Guess(kind="number", range=(0.0, 120.0)), Cells.of(["3", ""]))[0])
ranges.age = [0, 120]  # seen in private data: confirm that it is public, or replace it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psac.app.data.cells import Cells, date_of
from psac.app.data.columns import DATE, INDICATOR, NUMBER
from psac.app.data.guessing import IGNORED, Guess
from psac.app.data.toml import key, string, strings

SEEN = "seen in private data: confirm that it is public, or replace it"


def numbers(values: Sequence[float]) -> str:
    """Whole ones without a point.

    >>> numbers([0.0, 0.5])
    '[0, 0.5]'
    """
    return f"[{', '.join(str(int(v)) if v == int(v) else repr(v) for v in values)}]"


def lines_of(name: str, guess: Guess, cells: Cells, *, seen: bool = True) -> list[str]:
    """The lines of a column that is not ignored; marked if its values were `seen`."""
    if guess.kind == IGNORED:
        return []
    mark = f"  # {SEEN}" if seen else ""
    lines = [f"{_value(name, guess)}{mark}"]
    if guess.rare:
        plural = "value of few records was" if guess.rare == 1 else "values of few records were"
        lines.insert(
            0, f"# {guess.rare} {plural} left out; a value that is not listed is all zeros"
        )
    if guess.kind in (NUMBER, DATE) and cells.missing().any():
        lines.append(f'missing.{key(name)} = "{INDICATOR}"  # some cells are empty: {SEEN}')
    return lines


def _value(name: str, guess: Guess) -> str:
    if guess.kind == NUMBER:
        return f"ranges.{key(name)} = {numbers(guess.range)}"
    if guess.kind == DATE:
        form = [guess.form] if guess.form else []
        return f"dates.{key(name)} = {strings([*map(date_of, guess.range), *form])}"
    return f"categories.{key(name)} = {strings(guess.categories)}"


def ignore_lines(ignored: Iterable[str], reasons: dict[str, str]) -> list[str]:
    """One line for all columns that are left out, and why."""
    names = [*ignored, *reasons]
    told = [f"# {string(name)}: {reason}" for name, reason in reasons.items()]
    return [*told, f"ignore = {strings(names)}"] if names else []
