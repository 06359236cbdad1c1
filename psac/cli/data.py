"""`psac data list` and `psac data get`: data sets that psac can fetch or read."""

from __future__ import annotations

from rich.table import Table

from psac.cli.console import console


def list_data() -> None:
    """Data sets that psac can fetch or read."""
    from psac import data

    table = Table("name", "what", "records", "here")
    for name in data.names():
        info = data.info(name)
        table.add_row(
            name,
            info.title,
            ", ".join(f"{split} {count:,}" for split, count in info.records.items()),
            "yes" if info.obtained else "",
        )
    console.print(table)


def get_data(name: str) -> None:
    """Fetch a data set into the cache."""
    from psac import data

    with console.status(f"fetching {name}"):
        path = data.fetch(name)
    console.print(str(path), soft_wrap=True)
