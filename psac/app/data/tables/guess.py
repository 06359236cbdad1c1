"""What a column looks like: its kind, range and categories, read off the records.

Nothing here is private.  It is for the owner of the data, who edits the schema that is made from
it, and for `unsafe`, which takes it as it is.

    ignored      empty, different in every record (an id), text, or too many distinct values
    number       nearly all cells are numbers
    date         nearly all are dates, in one of `FORMS`
    categories   the rest; values of fewer than `RARE` records are left out

Bounds are rounded outwards, so that they are not cells.

>>> guess(Cells.of(["18", "95", "33"] * 10))
Guess(kind='number', reason='', range=(10.0, 100.0), categories=(), rare=0, form='', usual=None)
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from psac.app.data.tables.cells import Cells, Parsed, date_of, days_of
from psac.app.data.tables.columns import CATEGORIES, DATE, NUMBER

IGNORED = "ignored"
FORMS = ("", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d")
NEARLY_ALL = 0.9
RARE = 5  # records
FEWEST = 20  # records; in fewer, numbers may differ by chance
MOST_CATEGORIES = 50
WORDS_OF_TEXT = 4  # on average
FAR = 20.0  # times the width of the usual range
TEXT = "text, which needs a language model (psac train --text)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guess:
    """`reason` is why a column is ignored, `rare` how many values were left out, `usual` a range of
    nearly all numbers if the whole range is far wider."""

    kind: str
    reason: str = ""
    range: tuple[float, float] = (0.0, 1.0)
    categories: tuple[str, ...] = ()
    rare: int = 0
    form: str = ""
    usual: tuple[float, float] | None = None


def guess(cells: Cells) -> Guess:
    counts = np.where(cells.missing(), 0, cells.counts())
    if not counts.sum():
        return Guess(kind=IGNORED, reason="empty in every record")
    numbers = cells.numbers()
    if _share(numbers, counts) >= NEARLY_ALL:
        if differs_in_every_record(cells):
            return Guess(kind=IGNORED, reason="a different value in every record, like an id")
        return Guess(kind=NUMBER, range=_bounds(numbers.values), usual=_usual(cells, numbers))
    for form in FORMS:
        days = cells.days(form)
        if _share(days, counts) >= NEARLY_ALL:
            return Guess(kind=DATE, range=_years(days), form=form)
    return _of_words(cells, counts)


def differs_in_every_record(cells: Cells) -> bool:
    """Whether the column looks like an id: no fractions, and no value twice."""
    if len(cells) < FEWEST or len(cells.values) < len(cells) or cells.missing().any():
        return False
    values, _, bad = cells.numbers()
    return bool(bad.any() or (values == np.round(values)).all())


def is_text(cells: Cells) -> bool:
    """Whether it is written language."""
    words = [len(text.split()) for text in cells.texts() if text]
    return bool(words) and sum(words) / len(words) >= WORDS_OF_TEXT


def _of_words(cells: Cells, counts: np.ndarray) -> Guess:
    distinct = int((counts > 0).sum())
    if is_text(cells) and distinct > MOST_CATEGORIES:
        return Guess(kind=IGNORED, reason=TEXT)
    if differs_in_every_record(cells):
        return Guess(kind=IGNORED, reason="a different value in every record, like an id")
    least = RARE if counts.sum() >= FEWEST * RARE else 1
    frequent = sorted(
        {text for text, count in zip(cells.texts(), counts, strict=True) if count >= least}
    )
    if not 0 < len(frequent) <= MOST_CATEGORIES:
        return Guess(kind=IGNORED, reason=f"{distinct:,} distinct values")
    rare = int(((counts > 0) & (counts < least)).sum())
    return Guess(kind=CATEGORIES, categories=tuple(frequent), rare=rare)


def classes_seen(cells: Cells) -> list[str]:
    """The labels that occur: numbers by size, then text in alphabetical order."""
    present = ~cells.missing() & (cells.counts() > 0)
    return sorted(
        {text for text, there in zip(cells.texts(), present, strict=True) if there},
        key=_numerically,
    )


def refuse_as_classes(place: str, name: str, cells: Cells) -> None:
    """Raises if most records have a label of their own: an id, or a number to be predicted."""
    distinct = len(classes_seen(cells))
    if len(cells) >= FEWEST and distinct > len(cells) / 2:
        raise ValueError(
            f"{place}: column {name!r} has {distinct:,} distinct values in {len(cells):,} records, "
            "so it cannot hold the classes. Pass another column as the label. If it is a number to "
            "be predicted, use psac.make_private with your own loss."
        )


def _numerically(value: str) -> tuple[float, str]:
    try:
        return float(value), value
    except ValueError:
        return math.inf, value


def _share(parsed: Parsed, counts: np.ndarray) -> float:
    """The share of readable cells among those that are not missing."""
    return float(counts[~parsed.bad].sum() / counts.sum())


def _usual(cells: Cells, parsed: Parsed) -> tuple[float, float] | None:
    """Round numbers around all but 1 % of the records on each side, if that is far narrower."""
    values = parsed.values[cells.codes]
    values = values[~np.isnan(values)]
    ends = np.quantile(values, (0.01, 0.99))
    if (values.max() - values.min()) < FAR * max(ends[1] - ends[0], 1e-12):
        return None
    return _bounds(ends)


def _bounds(values: np.ndarray) -> tuple[float, float]:
    """Round numbers around all values."""
    there = values[~np.isnan(values)]
    low, high = float(there.min()), float(there.max())
    step = 10.0 ** math.floor(math.log10(high - low)) if high > low else 1.0
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    digits = max(0, -math.floor(math.log10(step)))
    return round(low, digits), round(max(high, low + step), digits)


def _years(parsed: Parsed) -> tuple[float, float]:
    """From the first of January before all dates to the first of January after them."""
    there = parsed.values[~np.isnan(parsed.values)]
    first, last = (int(date_of(float(day))[:4]) for day in (there.min(), there.max()))
    return days_of(f"{first:04}-01-01"), days_of(f"{min(last + 1, 9999):04}-01-01")
