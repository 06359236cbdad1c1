"""`psac audit`: an attack on the training step as it is installed, or on the plan of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

import psac
from psac.app.cli.console import console
from psac.app.cli.progress import price
from psac.app.reporting import numerals

if TYPE_CHECKING:
    from psac.accounting import Entry
    from psac.app.training import Run
    from psac.auditing import Audit


def audit(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of a run: its own rule, bound, noise, sampling rate and steps are "
            "attacked. Without one, a single step is.",
            show_default=False,
        ),
    ] = None,
    canaries: Annotated[
        int, typer.Option(help="Records that are put in or left out.", min=1000)
    ] = 20_000,
) -> None:
    """Attack private training: does it keep what it promises?

    Thousands of made-up records, each with a huge gradient, are put in or left out by fair coins,
    and the attack tells from the trained parameters which. What it shows is a lower bound of
    epsilon, with 95 % confidence. Above the promise, something is broken; below, nothing is proved.
    No record of the run is looked at.
    """
    result = psac.audit(canaries=canaries) if run is None else _of_run(run, canaries)
    console.print(_table(result))
    if not result.passed:
        console.print("[bold red]FAILED: training is not as private as it says.[/]")
        raise typer.Exit(1)
    console.print("[bold green]passed[/]: the attack leaves the promise standing.")


def _of_run(folder: Path, canaries: int) -> Audit:
    from psac.app.training import Run

    run = Run(folder)
    entry = _entry(run)
    delta, rule = _delta(run), run.recipe().clipping()
    console.print(f"{escape(repr(rule))}, {escape(str(entry))}", soft_wrap=True)
    spent = run.ledger().epsilon(delta)
    console.print(
        f"the run's own ledger promises epsilon {price(spent)} at delta {numerals.delta(delta)}"
    )
    if not run.ledger().secure:
        console.print("[bold red]The run had a seed, and is NOT private.[/]")
    with console.status(f"attacking {numerals.plural(entry.steps, 'step')}"):
        return psac.audit(
            noise_multiplier=entry.noise_multiplier,
            clipping=rule,
            delta=delta,
            steps=entry.steps,
            sampling_rate=entry.sampling_rate,
            canaries=canaries,
        )


def _entry(run: Run) -> Entry:
    """What the ledger says was done, if an attack can do the same."""
    if not run.ledger_path.exists():
        raise ValueError(f"{run.folder} holds no run: it has no ledger.")
    entries = run.ledger().training
    if len(entries) != 1:
        raise ValueError(f"the ledger of {run.folder} has {len(entries)} entries: one is needed.")
    if entries[0].sampling != "poisson":
        raise ValueError(
            f"the run in {run.folder} has {entries[0].sampling} sampling: the attack is on Poisson "
            "sampling. `psac audit` without a run attacks the step that all have in common."
        )
    return entries[0]


def _delta(run: Run) -> float:
    start = next(line for line in run.metrics() if line["kind"] == "start")
    return start["delta"]


def _table(result: Audit) -> Table:
    table = Table("", "epsilon", "how", title=f"at delta {numerals.delta(result.bound.delta)}")
    table.add_row("promised", price(result.promised), "by the ledger of the attacked run")
    how = str(result.bound).partition("confidence ")[2]
    table.add_row("shown", f">= {result.bound.epsilon:.3f}", f"confidence {how}")
    return table
