"""`psac data describe`: writes a schema for your own table, for you to edit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.prompt import Prompt

from psac.app.cli.console import as_typed, console, errors
from psac.app.cli.error_messages import typed

if TYPE_CHECKING:
    from psac.app.data.tables.cells import Cells
    from psac.app.data.tables.guess import Guess
    from psac.app.data.tables.reader import Table
    from psac.app.data.tables.schema_text import Answer

STEPS_PER_EPOCH = 20  # of the suggested command


def describe(
    table: Annotated[
        Path, typer.Argument(help="Your own .csv, .tsv or .parquet file.", show_default=False)
    ],
    label: Annotated[
        str | None, typer.Option(help="Column of the classes.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Schema to write. Default: the name of the table, ending in .toml."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Ask no questions and guess from the records.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the schema.")] = False,
) -> None:
    """Write a schema for your own table, for you to edit.

    The schema states the type of each column, its range or categories, what empty cells mean, and
    the classes. Values that were read off the records are marked: confirm or replace them.
    """
    from psac.app.data.tables.guess import refuse_as_classes
    from psac.app.data.tables.reader import table_of
    from psac.app.data.tables.schema_text import bad_cells, guessed, schema_text
    from psac.app.training.own_data import TABLES, is_table
    from psac.checkpoint.atomic import write_atomically

    place = output or table.with_suffix(".toml")
    if place.exists() and not force:
        raise typer.BadParameter(f"{place} already exists. Overwrite it with --force.")
    with typed():
        if table.is_file() and not is_table(table):
            raise ValueError(
                f"{table} is not a table. Pass a file that ends in {', '.join(TABLES)}."
            )
        content = table_of(table)
        if not content.num_records:
            raise ValueError(f"{table} has no records.")
        label = _label(content, label, yes)
        refuse_as_classes(content.place, label, content.columns[label])
    answers = guessed(content, label) if yes else asked(content, label)
    classes = None if yes else _classes(content.columns[label])
    write_atomically(place, schema_text(content, label, answers, classes).encode())
    _show(place, table, content.num_records, bad_cells(content, answers))


def _label(table: Table, label: str | None, yes: bool) -> str:
    names = list(table.columns)
    if label is None and yes:
        raise ValueError(f"--yes needs --label, the column of the classes: {', '.join(names)}.")
    if label is None:
        label = Prompt.ask("Which column holds the classes", choices=names, console=console)
    if label not in names:
        raise ValueError(f"{table.place} has no column {label!r}. It has: {', '.join(names)}.")
    return label


def _show(place: Path, table: Path, num_records: int, bad: list[str]) -> None:
    for fault in bad:
        errors.print(f"[yellow]{escape(fault)}[/]", soft_wrap=True)
    if bad:
        errors.print("Correct these cells in the table before you train.")
    batch_size = max(1, num_records // STEPS_PER_EPOCH)
    schema, data = escape(as_typed(place)), escape(as_typed(table))
    console.print(
        f"Wrote [bold]{schema}[/]. Its marked values were seen in private data:\n"
        "  1. Confirm that each is public knowledge, or replace it.\n"
        "  2. Remove the column from the list unconfirmed.\n"
        "Then train, for example:\n"
        f"  [bold]psac train --data {data} --schema {schema} --model linear --epsilon 3 "
        f"--batch-size {batch_size} --epochs 20 --learning-rate 1 --validation-fraction 0.1[/]",
        soft_wrap=True,
    )


# ---- Questions


def asked(table: Table, label: str) -> dict[str, Answer]:
    """The user's answers about each column except that of the classes."""
    from psac.app.data.tables.guess import guess

    names = [name for name in table.columns if name != label]
    return {name: _column(name, guess(table.columns[name])) for name in names}


def _column(name: str, seen: Guess) -> Answer:
    from psac.app.data.tables.columns import CATEGORIES, DATE, NUMBER
    from psac.app.data.tables.guess import IGNORED, Guess
    from psac.app.data.tables.schema_text import Answer

    kinds = {"number": NUMBER, "date": DATE, "categories": CATEGORIES, "ignore": IGNORED}
    usual = next(word for word, kind in kinds.items() if kind == seen.kind)
    why = f" ({seen.reason})" if seen.reason else ""
    word = Prompt.ask(f"{escape(name)}{why}", choices=list(kinds), default=usual, console=console)
    kind = kinds[word]
    if kind == IGNORED:
        return Answer(guess=Guess(kind=IGNORED, reason=seen.reason or "left out by its owner"))
    ask = _categories if kind == CATEGORIES else _range
    return ask(seen if kind == seen.kind else Guess(kind=kind))


def _range(seen: Guess) -> Answer:
    """Asks for two numbers or dates, separated by a space."""
    from psac.app.data.tables.cells import date_of, days_of
    from psac.app.data.tables.columns import DATE
    from psac.app.data.tables.schema_text import Answer

    is_date = seen.kind == DATE
    shown = " ".join(map(date_of if is_date else "{:g}".format, seen.range))
    question = f"  lowest and highest value (seen: {shown}; Enter keeps these, unconfirmed)"
    while True:
        reply = Prompt.ask(question, default="", show_default=False, console=console).split()
        if not reply:
            return Answer(guess=seen)
        try:
            low, high = map(days_of if is_date else float, reply)
            if low < high:
                return Answer(guess=dataclasses.replace(seen, range=(low, high)), seen=False)
        except ValueError:
            pass
        example = "2015-01-01 2026-01-01" if is_date else "0 120"
        console.print(f"  Give two values, the lower one first, such as {example}.")


def _categories(seen: Guess) -> Answer:
    from psac.app.data.tables.schema_text import Answer

    names = _list(f"  categories ({len(seen.categories)} seen; Enter keeps them, unconfirmed)")
    if names is None:
        return Answer(guess=seen)
    return Answer(guess=dataclasses.replace(seen, categories=tuple(names), rare=0), seen=False)


def _classes(cells: Cells) -> list[str] | None:
    from psac.app.data.tables.guess import classes_seen

    shown = ", ".join(classes_seen(cells)[:5])
    return _list(f"Classes (seen: {escape(shown)}; Enter keeps them, unconfirmed)")


def _list(question: str) -> list[str] | None:
    """The reply as a list, split at commas; None if it is empty."""
    reply = Prompt.ask(question, default="", show_default=False, console=console)
    return [part.strip() for part in reply.split(",") if part.strip()] or None
