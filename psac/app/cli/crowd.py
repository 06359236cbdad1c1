"""What a person sees while many runs train: a bar for all and one for each; lines elsewhere."""

from __future__ import annotations

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
from psac.app.cli.mistakes import code_of

if TYPE_CHECKING:
    from psac.app.training import Job, Outcome

Train = Callable[..., "list[Outcome]"]


class CrowdView:
    """Its `told` is the `watch` of `psac.training.train_many`; use it as a context."""

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

    def __enter__(self) -> CrowdView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def told(self, job: Job, line: dict[str, Any]) -> None:
        heard = {"start": self._start, "step": self._step, "evaluation": self._evaluation}
        heard.get(line["kind"], self._end)(job, line)

    def _start(self, job: Job, line: dict[str, Any]) -> None:
        self._bars[job.folder] = self._progress.add_task(
            escape(job.folder.name),
            total=line["planned_steps"],
            completed=line["step"],
            figures="",
        )

    def _step(self, job: Job, line: dict[str, Any]) -> None:
        self._progress.update(self._bars[job.folder], completed=line["step"])

    def _evaluation(self, job: Job, line: dict[str, Any]) -> None:
        self._progress.update(
            self._bars[job.folder],
            completed=line["step"],
            figures=f"accuracy {line['accuracy']:.1%}",
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
        return f"accuracy {line['accuracy']:.2%} in {line['seconds']:.0f} s"
    if line["kind"] == "failed":
        return f"[bold red]failed[/]: {escape(line['message'])}"
    return {"found": "was finished before", "stopped": "[yellow]stopped[/], saved"}[line["kind"]]


def trained(jobs: Sequence[Job], *, title: str, processes: int, train: Train | None = None) -> bool:
    """Trains all jobs before the user's eyes and says whether all are finished.

    `train` is `psac.training.train_many`, or does as it does.  Ctrl-C ends the command.
    """
    from psac.app.training import train_many

    if any(job.recipe.seed is not None for job in jobs):
        errors.print("[bold red]A seed is given: these runs are NOT private.[/]")
    try:
        with CrowdView(console, len(jobs), title) as view:
            outcomes = (train or train_many)(jobs, processes=processes, watch=view.told)
    except KeyboardInterrupt as stop:
        errors.print(f"[yellow]Stopped.[/] {stop} The same command goes on.")
        raise typer.Exit(code_of(stop)) from None
    return not any(outcome.error for outcome in outcomes)


def say_where(numbers: Path, page: Path) -> None:
    for what, path in (("numbers", numbers), ("page", page)):
        console.print(f"The {what}: [bold]{escape(as_typed(path))}[/]", soft_wrap=True)
