"""Resolves every column of a table: stated by the schema, released with noise, or refused.

Guarantees: ranges, categories and classes come from the schema, or from a release with noise that
is in the ledger.  What is not stated is refused, with the lines to add.  With `unsafe = true` it is
read off the records, and a sentence says so for each column.  A column that looks like an id or
like text is refused even then, unless its values are stated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from psac.accounting import Ledger
from psac.app.data.classes import SEEN, checked_classes, ledger_of
from psac.app.data.tables.cells import quoted, text_of
from psac.app.data.tables.columns import (
    CATEGORIES,
    DATE,
    NUMBER,
    Column,
    Columns,
    faults_of,
    refuse,
)
from psac.app.data.tables.guess import (
    IGNORED,
    classes_seen,
    differs_in_every_record,
    guess,
    refuse_as_classes,
)
from psac.app.data.tables.private_release import Budget, Release, release_columns
from psac.app.data.tables.reader import Table
from psac.app.data.tables.schema import Schema, check_missing, unconfirmed_refused
from psac.app.data.tables.schema_text import ignore_lines, lines_of
from psac.app.toml import strings

READ_OFF = "The {} of column '{}' were read off the private records."


class Resolved(NamedTuple):
    """`ledger` has what was released with noise, and warns of what was read off the records."""

    columns: dict[str, Column]
    classes: tuple[str, ...]
    unsafe: tuple[str, ...]
    ledger: Ledger | None


def resolve(table: Table, schema: Schema, budget: Budget | None) -> Resolved:
    """The columns and classes of a table with labels."""
    unconfirmed_refused(schema, table.place)
    names = [] if schema.text is not None else features_named(table, schema)
    open_columns = [name for name in names if schema.kind(name) is None]
    if schema.classes is None and schema.label is not None:
        refuse_as_classes(table.place, schema.label, table.columns[schema.label])
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
    return Resolved(columns, classes, tuple(unsafe), _ledger(unsafe, ledger))


def _ledger(unsafe: Sequence[str], releases: Ledger | None = None) -> Ledger | None:
    """What was released, with or without noise; None if nothing was."""
    if releases is None:
        return ledger_of(unsafe)
    for sentence in unsafe:
        releases.note_warning(sentence)
    return releases


def resolve_like(columns: Columns, table: Table, schema: Schema) -> Resolved:
    """The same for a table whose columns are known from other records."""
    if not schema.unsafe:
        _refuse_open(table, schema, [])
    classes, unsafe = _classes(table, schema)
    return Resolved(dict(columns), classes, tuple(unsafe), _ledger(unsafe))


def features_named(table: Table, schema: Schema) -> list[str]:
    """The columns that become features, in the order of the table."""
    others = {schema.label, *schema.ignore}
    return [name for name in table.columns if name not in others]


def _of_schema(schema: Schema, name: str) -> Column:
    """The column as stated; if it is to be released with noise, still without its values."""
    kind, missing = schema.kind(name), schema.missing_of(name)
    assert kind is not None
    if kind == CATEGORIES:
        return Column(kind=kind, categories=schema.categories_of(name) or (), missing=missing)
    ends = schema.range_of(name) or (0.0, 1.0)
    return Column(kind=kind, range=ends, missing=missing, form=schema.form(name))


# ---- Refused


def _refuse_ids(table: Table, schema: Schema, names: list[str]) -> None:
    """Raises for columns that look like ids and whose values are not stated."""
    ids = [
        name
        for name in names
        if (schema.kind(name) is None or schema.is_private(name))
        and differs_in_every_record(table.columns[name])
    ]
    if ids and (schema.unsafe or schema.asks_for_noise):
        reasons = dict.fromkeys(ids, "a different value in every record, like an id")
        raise ValueError(
            f"{table.place}: {quoted(ids)} has a different value in every record, like an id, so "
            "there is nothing to learn from it. Ignore it:\n\n"
            + "\n".join(ignore_lines(schema.ignore, reasons))
        )


def _refuse_open(table: Table, schema: Schema, names: list[str]) -> None:
    """Raises for what is not stated, with the lines that state it."""
    needs_classes = schema.classes is None
    if not names and not needs_classes:
        return
    what = ["the classes"] if needs_classes else []
    what += [f"the column{'' if len(names) == 1 else 's'} {quoted(names)}"] if names else []
    lines = suggested(table, schema, names, classes=needs_classes)
    raise ValueError(
        f"{table.place}: nothing states {' and '.join(what)}. Reading this off the private records "
        "would release it without noise. `psac data describe` writes a schema for you to edit. Or "
        "put these lines in the schema, or below [data_settings] of a recipe, after you have made "
        "sure that each holds public knowledge only:\n\n"
        + "\n".join(lines)
        + '\n\nIf a range or categories are not public, "private" releases them with noise for a '
        "share of the budget. With unsafe = true, they are read off the records, and every report "
        "says that this was not private."
    )


def suggested(table: Table, schema: Schema, names: list[str], *, classes: bool) -> list[str]:
    """Lines of TOML that are read off the records."""
    lines, reasons, columns = [], {}, []
    if classes and schema.label is not None:
        seen = strings(classes_seen(table.columns[schema.label]))
        lines.append(f"classes = {seen}  # {SEEN}")
    for name in names:
        cells = table.columns[name]
        looks_like = guess(cells)
        if looks_like.kind == IGNORED:
            reasons[name] = looks_like.reason
        else:
            columns += lines_of(name, looks_like, cells)
    if reasons:
        lines += ignore_lines(schema.ignore, reasons)
    return lines + columns


# ---- Read off the records, if the user allows it


def _classes(table: Table, schema: Schema) -> tuple[tuple[str, ...], list[str]]:
    assert schema.label is not None
    if schema.classes is not None:
        return checked_classes([text_of(name) for name in schema.classes]), []
    return tuple(classes_seen(table.columns[schema.label])), [
        READ_OFF.format("classes", schema.label)
    ]


def _read_off(table: Table, schema: Schema, name: str) -> tuple[Column, str]:
    cells = table.columns[name]
    looks_like, missing = guess(cells), schema.missing_of(name)
    if looks_like.kind == IGNORED:
        raise ValueError(
            f"{table.place}, column {name!r} is {looks_like.reason}. Ignore it:\n\n"
            + "\n".join(ignore_lines(schema.ignore, {name: looks_like.reason}))
        )
    known = looks_like.categories or None
    check_missing(name, missing, looks_like.kind, known, looks_like.form)
    if looks_like.kind == CATEGORIES:
        column = Column(kind=CATEGORIES, categories=looks_like.categories, missing=missing)
        return column, READ_OFF.format("categories", name)
    column = Column(
        kind=looks_like.kind, range=looks_like.range, missing=missing, form=looks_like.form
    )
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
            f"{table.place}: releasing the values of {quoted(private)} with noise costs privacy. "
            "State its budget: privacy_share = 0.2 in data_settings of a recipe with an epsilon, "
            "or budget=psac.data.Budget(epsilon=..., delta=...) in Python."
        )
    refuse(table, faults_of(table, columns))  # before anything is spent
    release = _release(table, columns, private, budget)
    for name in private:
        if columns[name].kind == CATEGORIES:
            categories = release.categories[name]
            columns[name] = dataclasses.replace(columns[name], categories=categories)
        else:
            columns[name] = dataclasses.replace(columns[name], range=release.ranges[name])
    return columns, release.ledger


def _release(
    table: Table, columns: dict[str, Column], private: list[str], budget: Budget
) -> Release:
    numbers, words = {}, {}
    for name in private:
        cells = table.columns[name]
        if columns[name].kind == CATEGORIES:
            words[name] = cells
        else:
            numbers[name] = columns[name].parse(cells).values[cells.codes]
    return release_columns(numbers, words, budget, table.num_records)
