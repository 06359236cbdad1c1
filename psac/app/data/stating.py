"""What each column of a table is: stated by its schema, released with noise, or refused.

Guarantees: a range, a category or a class comes from the schema, or from a release with noise that
is in the ledger.  What is stated nowhere is refused, with the lines to add; with `unsafe = true` it
is read off the records, and a sentence says so for each.  A column that looks like an id or like
text is refused even then, unless its values are stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from psac.accounting import Ledger
from psac.app.data.cells import quoted, text_of
from psac.app.data.columns import CATEGORIES, DATE, NUMBER, Column, Columns, faults_of, refuse
from psac.app.data.guessing import IGNORED, classes_seen, differs_in_every_record, guess
from psac.app.data.reading import Table
from psac.app.data.released import Budget, Released, released
from psac.app.data.schema import Schema, unconfirmed_refused
from psac.app.data.toml import strings
from psac.app.data.writing import SEEN, ignore_lines, lines_of

READ_OFF = "The {} of column '{}' were read off the private records."


class Stated(NamedTuple):
    """`ledger` is of what was released with noise, and warns of what was released without."""

    columns: dict[str, Column]
    classes: tuple[str, ...]
    unsafe: tuple[str, ...]
    ledger: Ledger | None


def stated(table: Table, schema: Schema, budget: Budget | None) -> Stated:
    """Of a table with a column of labels."""
    unconfirmed_refused(schema, table.place)
    names = [] if schema.text is not None else features_named(table, schema)
    open_columns = [name for name in names if schema.kind(name) is None]
    _refuse_ids(table, schema, names)
    if not schema.unsafe:
        _refuse_open(table, schema, open_columns)
    classes, unsafe = _classes(table, schema)
    columns = {}
    for name in names:
        if name in open_columns:
            columns[name], sentence = _read_off(table, schema, name)
            unsafe.append(sentence)
        else:
            columns[name] = _of_schema(schema, name)
    unsafe += [_unconfirmed(schema, name) for name in schema.unconfirmed]
    columns, ledger = _with_noise(table, schema, columns, budget)
    unsafe = list(dict.fromkeys(unsafe))
    return Stated(columns, classes, tuple(unsafe), _ledger(unsafe, ledger))


def _ledger(unsafe: Sequence[str], releases: Ledger | None = None) -> Ledger | None:
    """What was released, with or without noise; None if nothing was."""
    if releases is None and not unsafe:
        return None
    ledger = Ledger(secure=True) if releases is None else releases
    for sentence in unsafe:
        ledger.note_warning(sentence)
    return ledger


def like(columns: Columns, table: Table, schema: Schema) -> Stated:
    """Of a table whose features are known from other records."""
    classes, unsafe = _refuse_or_read_classes(table, schema)
    return Stated(dict(columns), classes, tuple(unsafe), _ledger(unsafe))


def features_named(table: Table, schema: Schema) -> list[str]:
    """The columns that become features, in the order of the table."""
    left_out = {schema.label, *schema.ignore}
    return [name for name in table.columns if name not in left_out]


def _of_schema(schema: Schema, name: str) -> Column:
    """The column as it is stated; where noise is to say it, as yet without its range."""
    kind, missing = schema.kind(name), schema.missing_of(name)
    assert kind is not None
    if kind == CATEGORIES:
        return Column(kind=kind, categories=schema.categories_of(name) or (), missing=missing)
    ends = schema.range_of(name) or (0.0, 1.0)
    return Column(kind=kind, range=ends, missing=missing, form=schema.form(name))


# ---- Refused


def _refuse_or_read_classes(table: Table, schema: Schema) -> tuple[tuple[str, ...], list[str]]:
    if not schema.unsafe:
        _refuse_open(table, schema, [])
    return _classes(table, schema)


def _refuse_ids(table: Table, schema: Schema, names: list[str]) -> None:
    """Raises for ids among the columns whose values are not stated."""
    ids = [
        name
        for name in names
        if (schema.kind(name) is None or schema.is_private(name))
        and differs_in_every_record(table.columns[name])
    ]
    if ids and (schema.unsafe or schema.asks_for_noise):
        reasons = dict.fromkeys(ids, "a different value in every record, like an id")
        raise ValueError(
            f"{table.place}: {quoted(ids)} has another value in every record, like an id, which "
            f"is nothing to learn from. Leave it out:\n\n"
            + "\n".join(ignore_lines(schema.ignore, reasons))
        )


def _refuse_open(table: Table, schema: Schema, names: list[str]) -> None:
    """Raises for what is not stated, with the lines that would state it."""
    needs_classes = schema.classes is None
    if not names and not needs_classes:
        return
    what = ["its classes"] if needs_classes else []
    what += [f"what {quoted(names)} {'is' if len(names) == 1 else 'are'}"] if names else []
    lines = suggested(table, schema, names, classes=needs_classes)
    raise ValueError(
        f"{table.place}: {' and '.join(what)} must be stated. To read it off the private records "
        "would release it without noise. Put these lines below [data_settings] (or at the top of "
        "a schema), after you have made sure that each holds public knowledge alone:\n\n"
        + "\n".join(lines)
        + '\n\nFor a range or categories, "private" releases them with noise for a share of the '
        "budget. `psac data describe` writes a schema to edit. Or set unsafe = true: then they are "
        "read off the records, and every page says that this was not private."
    )


def suggested(table: Table, schema: Schema, names: list[str], *, classes: bool) -> list[str]:
    """Lines of TOML, read off the records."""
    lines, reasons, stated_lines = [], {}, []
    if classes and schema.label is not None:
        seen = strings(classes_seen(table.columns[schema.label]))
        lines.append(f"classes = {seen}  # {SEEN}")
    for name in names:
        cells = table.columns[name]
        found = guess(cells)
        if found.kind == IGNORED:
            reasons[name] = found.reason
        else:
            stated_lines += lines_of(name, found, cells)
    if reasons:
        lines += ignore_lines(schema.ignore, reasons)
    return lines + stated_lines


# ---- Read off the records, because the user allows it


def _classes(table: Table, schema: Schema) -> tuple[tuple[str, ...], list[str]]:
    assert schema.label is not None
    if schema.classes is not None:
        return tuple(map(text_of, schema.classes)), []
    found = tuple(classes_seen(table.columns[schema.label]))
    return found, [READ_OFF.format("classes", schema.label)]


def _read_off(table: Table, schema: Schema, name: str) -> tuple[Column, str]:
    cells = table.columns[name]
    found, missing = guess(cells), schema.missing_of(name)
    if found.kind == IGNORED:
        raise ValueError(
            f"{table.place}, column {name!r} is {found.reason}. Leave it out:\n\n"
            + "\n".join(ignore_lines(schema.ignore, {name: found.reason}))
        )
    if found.kind == CATEGORIES:
        column = Column(kind=CATEGORIES, categories=found.categories, missing=missing)
        return column, READ_OFF.format("categories", name)
    column = Column(kind=found.kind, range=found.range, missing=missing, form=found.form)
    return column, READ_OFF.format("lowest and highest values", name)


def _unconfirmed(schema: Schema, name: str) -> str:
    what = {NUMBER: "lowest and highest values", DATE: "first and last dates"}
    kind = "classes" if name == schema.label else what.get(schema.kind(name) or "", "categories")
    return READ_OFF.format(kind, name)


# ---- Released with noise


def _with_noise(
    table: Table, schema: Schema, columns: dict[str, Column], budget: Budget | None
) -> tuple[dict[str, Column], Ledger | None]:
    private = [name for name in columns if schema.kind(name) and schema.is_private(name)]
    if not private:
        return columns, None
    if budget is None:
        raise ValueError(
            f"{table.place}: the values of {quoted(private)} are to be released with noise, which "
            "costs privacy. Say what it may cost: privacy_share = 0.2 in data_settings of a recipe "
            "with an epsilon, or budget=psac.data.Budget(epsilon=..., delta=...) in Python."
        )
    refuse(table, faults_of(table, columns))  # before anything is spent
    found = _found(table, columns, private, budget)
    for name in private:
        is_words = columns[name].kind == CATEGORIES
        changed: dict[str, Any] = {"categories": found.categories[name]} if is_words else {}
        changed |= {} if is_words else {"range": found.ranges[name]}
        columns[name] = columns[name].replaced(**changed)
    return columns, found.ledger


def _found(
    table: Table, columns: dict[str, Column], private: list[str], budget: Budget
) -> Released:
    numbers, words = {}, {}
    for name in private:
        cells = table.columns[name]
        if columns[name].kind == CATEGORIES:
            words[name] = cells
        else:
            numbers[name] = columns[name].read(cells).values[cells.codes]
    return released(numbers, words, budget, table.num_records)
