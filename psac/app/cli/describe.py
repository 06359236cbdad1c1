"""`psac data describe`: a schema of your own table, to edit, by questions or without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.prompt import Prompt

from psac.app.cli.console import as_typed, console, errors
from psac.app.cli.mistakes import typed

if TYPE_CHECKING:
    from psac.app.data.cells import Cells
    from psac.app.data.describing import Answer
    from psac.app.data.guessing import Guess
    from psac.app.data.reading import Table


def describe(
    table: Annotated[
        Path, typer.Argument(help="A .csv, .tsv or .parquet file of your own.", show_default=False)
    ],
    label: Annotated[
        str | None, typer.Option(help="The column of the classes.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The schema to write. Default: as the table, with .toml.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Ask nothing: take what the records look like.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the schema.")] = False,
) -> None:
    """Write a schema of your own table, to edit: types, ranges, categories, label."""
    from psac.app.data.describing import bad_cells, guessed, schema_text
    from psac.app.data.reading import table_of
    from psac.checkpoint.atomic import write_atomically

    place = output or table.with_suffix(".toml")
    if place.exists() and not force:
        raise typer.BadParameter(f"{place} is there already: --force overwrites it.")
    with typed():
        read = table_of(table)
        chosen = _label(read, label, yes)
    answers = guessed(read, chosen) if yes else asked(read, chosen)
    classes = None if yes else _classes(read.columns[chosen])
    write_atomically(place, schema_text(read, chosen, answers, classes).encode())
    _say(place, table, bad_cells(read, answers))


def _label(table: Table, label: str | None, yes: bool) -> str:
    names = list(table.columns)
    if label is None and yes:
        raise ValueError(f"--yes needs --label, the column of the classes: {', '.join(names)}.")
    if label is None:
        label = Prompt.ask("Which column holds the classes", choices=names, console=console)
    if label not in names:
        raise ValueError(f"{table.place} has no column {label!r}. It has: {', '.join(names)}.")
    return label


def _say(place: Path, table: Path, bad: list[str]) -> None:
    for fault in bad:
        errors.print(f"[yellow]{escape(fault)}[/]", soft_wrap=True)
    if bad:
        errors.print("Mend these cells in the table: they cannot be trained on.")
    console.print(
        f"[bold]{escape(as_typed(place))}[/] holds values that were seen in private data. Confirm "
        "or replace them, and take their columns off the list unconfirmed. Then: psac train "
        f"--data {escape(as_typed(table))} --schema {escape(as_typed(place))} ...",
        soft_wrap=True,
    )


# ---- Questions


def asked(table: Table, label: str) -> dict[str, Answer]:
    """The owner's word on each column but that of the classes."""
    from psac.app.data.guessing import guess

    names = [name for name in table.columns if name != label]
    return {name: _column(name, guess(table.columns[name])) for name in names}


def _column(name: str, seen: Guess) -> Answer:
    from psac.app.data.columns import CATEGORIES, DATE, NUMBER
    from psac.app.data.describing import Answer
    from psac.app.data.guessing import IGNORED, Guess

    kinds = {"number": NUMBER, "date": DATE, "categories": CATEGORIES, "ignore": IGNORED}
    usual = next(word for word, kind in kinds.items() if kind == seen.kind)
    why = f" ({seen.reason})" if seen.reason else ""
    word = Prompt.ask(f"{escape(name)}{why}", choices=list(kinds), default=usual, console=console)
    kind = kinds[word]
    if kind == IGNORED:
        return Answer(guess=Guess(kind=IGNORED, reason=seen.reason or "as its owner says"))
    ask = _categories if kind == CATEGORIES else _range
    return ask(seen if kind == seen.kind else Guess(kind=kind))


def _range(seen: Guess) -> Answer:
    """Two numbers or dates, with a space between them."""
    import dataclasses

    from psac.app.data.cells import date_of, days_of
    from psac.app.data.columns import DATE
    from psac.app.data.describing import Answer

    is_date = seen.kind == DATE
    shown = " ".join(map(date_of if is_date else "{:g}".format, seen.range))
    question = f"  lowest and highest (seen: {shown}; Enter keeps that, to be confirmed)"
    while True:
        given = Prompt.ask(question, default="", show_default=False, console=console).split()
        if not given:
            return Answer(guess=seen)
        try:
            low, high = map(days_of if is_date else float, given)
            if low < high:
                return Answer(guess=dataclasses.replace(seen, range=(low, high)), seen=False)
        except ValueError:
            pass
        console.print("  Give two, the lower one first, such as " + ("2015-01-01 2026-01-01"
                      if is_date else "0 120") + ".")  # fmt: skip


def _categories(seen: Guess) -> Answer:
    import dataclasses

    from psac.app.data.describing import Answer

    found = _list(f"  categories (seen: {len(seen.categories)}; Enter keeps them, to be confirmed)")
    if found is None:
        return Answer(guess=seen)
    return Answer(guess=dataclasses.replace(seen, categories=tuple(found), rare=0), seen=False)


def _classes(cells: Cells) -> list[str] | None:
    from psac.app.data.guessing import classes_seen

    shown = ", ".join(classes_seen(cells)[:5])
    return _list(f"The classes (seen: {escape(shown)}; Enter keeps them, to be confirmed)")


def _list(question: str) -> list[str] | None:
    """What is given, with commas between, or None."""
    given = Prompt.ask(question, default="", show_default=False, console=console)
    return [part.strip() for part in given.split(",") if part.strip()] or None
