"""`psac audit`: an attack on the installed training step, or on the settings of a run."""

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
            help="Folder of a run, whose rule, bound, noise, sampling rate and steps are "
            "attacked. Without it, a single step is attacked.",
            show_default=False,
        ),
    ] = None,
    canaries: Annotated[int, typer.Option(help="Number of made-up records.", min=1000)] = 20_000,
) -> None:
    """Attack private training and compare the result with its guarantee.

    Each of thousands of made-up records, with huge gradients, is included with probability 1/2. The
    attack guesses from the trained parameters which were included, which gives a lower bound of
    epsilon at 95 % confidence. A bound above the guarantee means that something is broken; a bound
    below it proves nothing. No record of the run is used.
    """
    result = psac.audit(canaries=canaries) if run is None else _of_run(run, canaries)
    console.print(_table(result))
    if not result.passed:
        console.print("[bold red]FAILED: training is less private than its ledger says.[/]")
        raise typer.Exit(1)
    console.print("[bold green]passed[/]: the attack does not contradict the guarantee.")


def _of_run(folder: Path, canaries: int) -> Audit:
    from psac.app.training import Run

    run = Run(folder)
    entry = _entry(run)
    delta, rule = _delta(run), run.recipe().clipping()
    console.print(f"{escape(repr(rule))}, {escape(str(entry))}", soft_wrap=True)
    spent = run.ledger().epsilon(delta)
    console.print(
        f"the ledger of the run guarantees epsilon {price(spent)} at delta {numerals.delta(delta)}"
    )
    if not run.ledger().secure:
        console.print("[bold red]The run was seeded, so it is NOT private.[/]")
    if warned := " ".join(run.ledger().warnings):
        text = escape(f"It does not cover what psac warned of: {warned}")
        console.print(f"[bold red]{text}[/]", soft_wrap=True)
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
    """The training that the ledger records, if it can be attacked."""
    if not run.ledger_path.exists():
        raise ValueError(f"{run.folder} is not a run: it has no ledger.json.")
    entries = run.ledger().training
    if len(entries) != 1:
        raise ValueError(
            f"the ledger of {run.folder} has {len(entries)} entries; only one can be attacked."
        )
    if entries[0].sampling != "poisson":
        raise ValueError(
            f"the run in {run.folder} used {entries[0].sampling} sampling, but the attack is for "
            "Poisson sampling. `psac audit` without a run attacks a single step."
        )
    return entries[0]


def _delta(run: Run) -> float:
    start = next(line for line in run.metrics() if line["kind"] == "start")
    return start["delta"]


def _table(result: Audit) -> Table:
    table = Table("", "epsilon", "source", title=f"at delta {numerals.delta(result.bound.delta)}")
    table.add_row("guaranteed", price(result.promised), "ledger of the attacked training")
    how = str(result.bound).partition("confidence ")[2]
    table.add_row("attack", f">= {result.bound.epsilon:.3f}", f"confidence {how}")
    return table
