"""`psac paper table2`: the runs of Table 2 that are missing, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psac.cli.console import as_typed, console
from psac.cli.crowd import trained
from psac.cli.mistakes import typed
from psac.cli.options import Processes

if TYPE_CHECKING:
    from psac.experiments.table2 import Study


def table2(
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Only this row; may be repeated.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where result files and table go.")] = Path(
        "results/table2"
    ),
    runs: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/table2"),
    processes: Processes = 2,
    write_only: Annotated[
        bool, typer.Option("--write-only", help="Train nothing: write the table anew.")
    ] = False,
) -> None:
    """Table 2 of the paper: DP-SGD, Auto-S, DP-PSAC, AdaptivePSAC; takes hours, may be stopped."""
    from psac.experiments.table import write_table
    from psac.experiments.table2 import studies

    table, failed = studies(results, runs), False
    with typed():
        chosen = _chosen(table, rows)
    for study in chosen if not write_only else []:
        for stage, jobs in study.stages():
            title = f"{study.row.title}, {stage}"
            done = trained(jobs, title=title, processes=processes, train=study.train)
            failed = failed or not done
            write_table(table, results)
    console.print(f"The table: [bold]{as_typed(write_table(table, results))}[/]", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _chosen(table: list[Study], names: list[str] | None) -> list[Study]:
    known = {study.row.name: study for study in table if study.row.settings}
    for name in names or []:
        if name not in known:
            why = "".join(f": {study.row.note}" for study in table if study.row.name == name)
            raise ValueError(f"row '{name}' cannot be run{why}. Rows: {', '.join(known)}.")
    return [known[name] for name in names or known]
