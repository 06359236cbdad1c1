"""`psac sweep`: many settings of one recipe, and what it costs to have tried them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from psac.app.cli.console import console
from psac.app.cli.crowd import say_where, trained
from psac.app.cli.mistakes import typed
from psac.app.cli.options import Processes, RecipeName, made_from_options
from psac.app.cli.progress import price
from psac.app.cli.settings import settings
from psac.app.cli.sweep_plan import Plan
from psac.app.cli.together import Price, price_of_all

if TYPE_CHECKING:
    from psac.app.reporting.runs import Run
    from psac.app.training import Job

HELD_OUT = (
    " The best was chosen by records that were held out, without noise: for these records, being "
    "chosen is not covered. Choose by public ones (--validation-fraction 0) to have them covered."
)


@made_from_options(settings=settings)
def sweep(
    recipe: RecipeName,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try", help="A grid: learning_rate=0.5,1,2. Repeat for more.", metavar="NAME=A,B,..."
        ),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            help="Random, log-uniform: learning_rate=0.1:10. Repeat for more.",
            metavar="NAME=LOW:HIGH",
        ),
    ] = None,
    expected_runs: Annotated[
        float, typer.Option(help="With --range: how many runs on average; chance decides.")
    ] = 10,
    folder: Annotated[
        Path | None, typer.Option(help="Where the runs go. Default: runs/sweep-NAME.")
    ] = None,
    processes: Processes = 2,
    *,
    settings: dict[str, Any],
) -> None:
    """Try many settings, and say what having tried them costs.

    A grid (--try) costs as much as all of its runs together. A random number of random settings
    (--range) costs far less, if only the best run is ever released, and nothing of the others, not
    even how many there were. The same command goes on where it was stopped.
    """
    place = folder or Path("runs") / f"sweep-{Path(recipe).stem}"
    with typed():
        plan = Plan.of(recipe, tries or [], ranges or [], expected_runs, settings)
        jobs = plan.jobs(place)
    if not trained(jobs, title="runs", processes=processes):
        raise typer.Exit(1)
    _tell(plan, jobs, place)


def _tell(plan: Plan, jobs: list[Job], place: Path) -> None:
    """A table in the terminal, a JSON file, a page."""
    from psac.app.reporting import report
    from psac.app.reporting.runs import read
    from psac.app.training.run import write_json

    runs = [read(job.folder) for job in jobs]
    best = max(runs, key=lambda run: run.accuracy or 0)
    console.print(_table(plan, runs, best))
    total, tuned = price_of_all(runs), _tuned(plan, jobs[0])
    console.print(_words(best, total, tuned, plan))
    results = [{"name": run.name, "accuracy": run.accuracy, "epsilon": run.epsilon} for run in runs]
    facts = {"results": results, "best": best.name, "price": total.to_json(), "tuned": tuned}
    write_json(place / "results.json", {"asked": plan.to_json(), **facts})
    folders = [job.folder for job in jobs]
    page = report(folders if len(folders) > 1 else folders[0], output=place / "report.html")
    say_where(place / "results.json", page)


def _table(plan: Plan, runs: list[Run], best: Run) -> Table:
    held_out = any(run.on_private_records for run in runs)
    table = Table(title="Not private: accuracy on held-out private records" if held_out else None)
    for column in (*plan.names, "accuracy"):
        table.add_column(column.replace("_", " "), justify="right")
    for run in sorted(runs, key=lambda run: -(run.accuracy or 0)):
        values = [f"{run.recipe[name]:g}" for name in plan.names]
        style = "bold green" if run is best else None
        table.add_row(*values, f"{run.accuracy or 0:.2%}", style=style)
    return table


def _tuned(plan: Plan, job: Job) -> float | None:
    """The price of releasing the best of a random number of runs; a grid has none."""
    import psac
    from psac.app.training import Run

    if plan.choices:
        return None
    summary = Run(job.folder).summary()
    return psac.tuned_epsilon(
        noise_multiplier=summary["noise_multiplier"],
        sampling_rate=summary["expected_batch_size"] / summary["num_records"],
        steps=summary["steps"],
        delta=summary["delta"],
        expected_runs=plan.expected_runs,
        sampling=plan.recipe.sampling,
        num_records=summary["num_records"],
    )


def _words(best: Run, total: Price, tuned: float | None, plan: Plan) -> str:
    alone = (
        f"The best run is {best.name}; alone, untuned, it would have epsilon {price(best.epsilon)}."
    )
    if tuned is None:
        return (
            f"{alone} A grid was tried, and whoever releases its best has used all of it. "
            f"{total.sentence} With --range, tuning costs less."
        )
    return (
        f"{alone} As the best of a random number of runs, {plan.expected_runs:g} on average, it "
        f"has epsilon {price(tuned)}, if nothing of the others is ever released, not even how many "
        f"there were, nor this table. {total.sentence}"
        f"{HELD_OUT if best.on_private_records else ''}"
    )
