"""Several runs at a time: their progress bars, and what they cost together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from psac.app.cli.console import as_typed, console, errors
from psac.app.cli.error_messages import code_of
from psac.app.cli.progress import price
from psac.app.reporting import numerals

if TYPE_CHECKING:
    from psac.app.reporting.snapshot import RunSnapshot
    from psac.app.training import Job, Outcome

Train = Callable[..., "list[Outcome]"]
ON_PRIVATE = "NOT private: accuracy on private records"


class SeveralRunsView:
    """A bar for all runs and one for each; plain lines where there is no terminal.

    A context whose `show` is the `watch` of `psac.training.train_many`.
    """

    def __init__(self, console: Console, total: int, title: str = "runs") -> None:
        self._console, self._total, self._done = console, total, 0
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task(title, total=total, figures=f"0 of {total}")
        self._bars: dict[Path, TaskID] = {}  # by the folder of the run

    def __enter__(self) -> SeveralRunsView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, job: Job, line: dict[str, Any]) -> None:
        handlers = {
            **{"start": self._start, "step": self._step, "evaluation": self._evaluation},
            "warning": self._warning,
        }
        handlers.get(line["kind"], self._end)(job, line)

    def _start(self, job: Job, line: dict[str, Any]) -> None:
        self._bars[job.folder] = self._progress.add_task(
            escape(job.folder.name),
            total=line["planned_steps"],
            completed=line["step"],
            figures="",
        )

    def _warning(self, job: Job, line: dict[str, Any]) -> None:
        errors.print(f"[yellow]Warning:[/] {escape(job.folder.name)}: {escape(line['text'])}")

    def _step(self, job: Job, line: dict[str, Any]) -> None:
        self._progress.update(self._bars[job.folder], completed=line["step"])

    def _evaluation(self, job: Job, line: dict[str, Any]) -> None:
        self._progress.update(
            self._bars[job.folder],
            completed=line["step"],
            figures=f"{_marked(line)}accuracy {line['accuracy']:.1%}",
        )

    def _end(self, job: Job, line: dict[str, Any]) -> None:
        if job.folder in self._bars:
            self._progress.remove_task(self._bars.pop(job.folder))
        self._done += 1
        figures = f"{self._done} of {self._total}"
        self._progress.update(self._all, completed=self._done, figures=figures)
        self._console.print(f"[dim]{figures}[/] {escape(job.folder.name)}: {_outcome(line)}")


def _outcome(line: dict[str, Any]) -> str:
    if line["kind"] == "end":
        return f"{_marked(line)}accuracy {line['accuracy']:.2%} in {line['seconds']:.0f} s"
    if line["kind"] == "failed":
        return f"[bold red]failed[/]: {escape(line['message'])}"
    return {
        "already_finished": "already finished",
        "stopped": "[yellow]stopped[/] and saved",
    }[line["kind"]]


def _marked(line: dict[str, Any]) -> str:
    """The mark of a result on private records."""
    return "" if line.get("public") is True else "not private: "


def trained(jobs: Sequence[Job], *, title: str, processes: int, train: Train | None = None) -> bool:
    """Trains all jobs, shows their progress, and returns whether all of them finished.

    `train` is `psac.training.train_many` or works like it.  Ctrl-C ends the command.
    """
    from psac.app.training import train_many

    if any(job.recipe.seed is not None for job in jobs):
        errors.print("[bold red]The seed makes these runs repeatable and NOT private.[/]")
    try:
        with SeveralRunsView(console, len(jobs), title) as view:
            outcomes = (train or train_many)(jobs, processes=processes, watch=view.show)
    except KeyboardInterrupt as stop:
        errors.print(f"[yellow]Stopped.[/] {stop} Run the same command to continue.")
        raise typer.Exit(code_of(stop)) from None
    return not any(outcome.error for outcome in outcomes)


def say_where(results: Path, page: Path) -> None:
    for what, path in (("Results", results), ("Report", page)):
        console.print(f"{what}: [bold]{escape(as_typed(path))}[/]", soft_wrap=True)


def title_of(runs: Sequence[RunSnapshot], title: str | None = None) -> str | None:
    """The title of a table of accuracies, which says so if any is on private records."""
    if all(run.on_public_records for run in runs):
        return title
    return f"{title}. {ON_PRIVATE}" if title else ON_PRIVATE


def mark_of(runs: Sequence[RunSnapshot]) -> dict[str, bool]:
    """The mark of a file with the results of these runs; `"public": true` may be published."""
    return {"public": True} if all(run.on_public_records for run in runs) else {"private": False}


# ---- What they cost together


@dataclasses.dataclass(frozen=True, kw_only=True)
class TotalCost:
    """`epsilon` is None if the ledgers cannot be added up.

    `warnings` are those of all runs, as sentences that may be published: what they say is not
    covered by epsilon.
    """

    epsilon: float | None
    delta: float | None
    runs: int
    secure: bool
    warnings: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        if not self.warnings:
            return self._cost
        return f"{self._cost} It does not cover what psac warned of: {' '.join(self.warnings)}"

    @property
    def _cost(self) -> str:
        if self.epsilon is None or self.delta is None:
            return "The total cost is unknown because the ledgers of these runs cannot be added up."
        cost = "costs" if self.secure else "would cost, without a seed,"
        return (
            f"Releasing all {self.runs} runs {cost} epsilon {price(self.epsilon)} "
            f"at delta {numerals.delta(self.delta)}."
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def total_cost(runs: Sequence[RunSnapshot]) -> TotalCost:
    from psac.app.reporting.comparison import together

    epsilon, delta = together(runs) or (None, None)
    secure = all(run.secure is True for run in runs)
    warnings = tuple(dict.fromkeys(text for run in runs for text in run.warnings))
    return TotalCost(epsilon=epsilon, delta=delta, runs=len(runs), secure=secure, warnings=warnings)
