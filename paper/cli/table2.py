"""`psac paper table2`: the runs of Table 2 that are missing, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paper.cli.paper import RESULTS, Results
from psac.app.cli.console import as_typed, console
from psac.app.cli.error_messages import typed
from psac.app.cli.options import Processes
from psac.app.cli.several_runs import trained

if TYPE_CHECKING:
    from paper.experiments.table2 import Study


def table2(
    rows: Annotated[
        list[str] | None,
        typer.Option("--row", help="Only this row; may be repeated. Some need data of yours."),
    ] = None,
    results: Results = RESULTS,
    runs: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/table2"),
    data_root: Annotated[
        Path | None, typer.Option(help="Where the files of the row's data are, such as CelebA's.")
    ] = None,
    processes: Processes = 2,
    write_only: Annotated[
        bool, typer.Option("--write-only", help="Train nothing: write the table anew.")
    ] = False,
) -> None:
    """Table 2 of the paper: DP-SGD, Auto-S, DP-PSAC, AdaptivePSAC; takes hours, may be stopped."""
    from paper.experiments.table import write_table
    from paper.experiments.table2 import studies
    from psac.app.training.splits import load_splits

    folder = results / "table2"
    table, failed = studies(folder, runs), False
    with typed():
        chosen = [study.on(data_root) for study in _chosen(table, rows)]
    for study in chosen if not write_only else []:
        if not study.row.run_here:
            load_splits(study.tuning("psac")[0])  # says once, not in each run, what is missing
        for stage, jobs in study.stages():
            title = f"{study.row.title}, {stage}"
            done = trained(jobs, title=title, processes=processes, train=study.train)
            failed = failed or not done
            write_table(table, folder)
    console.print(f"The table: [bold]{as_typed(write_table(table, folder))}[/]", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _chosen(table: list[Study], names: list[str] | None) -> list[Study]:
    """The rows of these names; without names, those whose data anybody can have."""
    known = {study.row.name: study for study in table}
    for name in names or []:
        if name not in known:
            raise ValueError(f"row '{name}' is unknown. Rows: {', '.join(known)}.")
    return [known[name] for name in names or known if names or known[name].row.run_here]
