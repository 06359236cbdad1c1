"""`psac sweep`: tries many settings of one recipe, and prices the search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from psac.app.cli.console import console
from psac.app.cli.error_messages import typed
from psac.app.cli.options import Processes, RecipeName, with_options
from psac.app.cli.progress import price
from psac.app.cli.recipe_options import settings
from psac.app.cli.several_runs import (
    TotalCost,
    mark_of,
    say_where,
    title_of,
    total_cost,
    trained,
)
from psac.app.cli.sweep_plan import SweepPlan

if TYPE_CHECKING:
    from psac.app.reporting.snapshot import RunSnapshot
    from psac.app.training import Job

HELD_OUT = (
    " The best run was chosen by its accuracy on private records, without noise. For these "
    "records, that choice is not covered. Evaluate on public test records to cover it."
)


@with_options(settings=settings)
def sweep(
    recipe: RecipeName,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            help="Values for a grid: learning_rate=0.5,1,2. Can be repeated.",
            metavar="NAME=A,B,...",
        ),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            help="Range for random search, log-uniform: learning_rate=0.1:10. Can be repeated.",
            metavar="NAME=LOW:HIGH",
        ),
    ] = None,
    expected_runs: Annotated[
        float,
        typer.Option(help="Average number of runs with --range. The number itself is random."),
    ] = 10,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the runs. Default: runs/sweep-NAME.")
    ] = None,
    processes: Processes = 2,
    *,
    settings: dict[str, Any],
) -> None:
    """Try many settings and report what the search costs in privacy.

    A grid (--try) costs as much as all its runs together. Random search (--range) costs far less if
    only the best run is ever released and nothing about the others, not even their number. After an
    interruption, run the same command to continue.
    """
    place = folder or Path("runs") / f"sweep-{Path(recipe).stem}"
    with typed():
        plan = SweepPlan.of(recipe, tries or [], ranges or [], expected_runs, settings)
        jobs = plan.jobs(place)
    if not trained(jobs, title="runs", processes=processes):
        raise typer.Exit(1)
    _show(plan, jobs, place)


def _show(plan: SweepPlan, jobs: list[Job], place: Path) -> None:
    """Writes a table in the terminal, a JSON file and a report."""
    from psac.app.reporting import report
    from psac.app.reporting.snapshot import read
    from psac.app.training.run import write_json

    runs = [read(job.folder) for job in jobs]
    best = max(runs, key=lambda run: run.accuracy or 0)
    console.print(_table(plan, runs, best))
    total, tuned = total_cost(runs), _tuned(plan, jobs)
    console.print(_words(best, total, tuned, plan))
    results = [{"name": run.name, "accuracy": run.accuracy, "epsilon": run.epsilon} for run in runs]
    facts = {"results": results, "best": best.name, "price": total.to_json(), "tuned": tuned}
    facts |= mark_of(runs)
    write_json(place / "results.json", {"asked": plan.to_json(), **facts})
    folders = [job.folder for job in jobs]
    page = report(folders if len(folders) > 1 else folders[0], output=place / "report.html")
    say_where(place / "results.json", page)


def _table(plan: SweepPlan, runs: list[RunSnapshot], best: RunSnapshot) -> Table:
    table = Table(title=title_of(runs))
    for column in (*plan.names, "accuracy"):
        table.add_column(column.replace("_", " "), justify="right")
    for run in sorted(runs, key=lambda run: -(run.accuracy or 0)):
        values = [f"{run.recipe[name]:g}" for name in plan.names]
        style = "bold green" if run is best else None
        table.add_row(*values, f"{run.accuracy or 0:.2%}", style=style)
    return table


def _tuned(plan: SweepPlan, jobs: list[Job]) -> float | None:
    """Epsilon of releasing only the best of a random number of runs; None for a grid.

    Every run counts as the most expensive one: steps that were lost with a process are spent.
    """
    import psac
    from psac.app.training import Run

    if plan.choices:
        return None
    summary = Run(jobs[0].folder).summary()
    return psac.tuned_epsilon(
        noise_multiplier=summary["noise_multiplier"],
        sampling_rate=summary["expected_batch_size"] / summary["num_records"],
        steps=max(Run(job.folder).ledger().steps for job in jobs),
        delta=summary["delta"],
        expected_runs=plan.expected_runs,
        sampling=plan.recipe.sampling,
        num_records=summary["num_records"],
    )


def _words(best: RunSnapshot, total: TotalCost, tuned: float | None, plan: SweepPlan) -> str:
    alone = (
        f"The best run is {best.name}. Without the search, its epsilon is {price(best.epsilon)}."
    )
    not_covered = HELD_OUT if best.on_private_records else ""
    if tuned is None:
        return (
            f"{alone} Choosing the best of a grid uses all runs. {total.sentence} Random search "
            f"(--range) costs less.{not_covered}"
        )
    return (
        f"{alone} As the best of a random number of runs, {plan.expected_runs:g} on average, its "
        f"epsilon is {price(tuned)}, if nothing about the others is ever released: not this table, "
        f"and not even their number. {total.sentence}{not_covered}"
    )
