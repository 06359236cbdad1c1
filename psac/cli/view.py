"""What a person sees while a run trains: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class View:
    """An observer of `psac.training.train`; use it as a context."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: Any = None
        self._figures: dict[str, str] = {}

    def __enter__(self) -> View:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, info: dict[str, Any]) -> None:
        self._task = self._progress.add_task(
            self._title, total=info["planned_steps"], completed=info["step"], figures=""
        )
        self._console.print(
            f"{self._title}: {info['num_records']:,} records, {info['planned_steps']:,} steps of "
            f"{info['expected_batch_size']:,}, noise multiplier {info['noise_multiplier']:.3f}, "
            f"delta {info['delta']:.1e}"
        )
        if not info["secure"]:
            self._console.print("[bold red]A seed is given: this run is NOT private.[/]")

    def stepped(self, info: dict[str, Any]) -> None:
        self._show(info, loss="loss {loss:.3f}", samples_per_second="{samples_per_second:,.0f}/s")

    def evaluated(self, info: dict[str, Any]) -> None:
        self._show(info, accuracy="accuracy {accuracy:.1%}", epsilon="epsilon {epsilon:.2f}")
        if not self._console.is_terminal:
            self._console.print(
                f"  epoch {info['epoch']:.0f}: accuracy {info['accuracy']:.1%}, "
                f"epsilon {_number(info['epsilon'])}"
            )

    def ended(self, info: dict[str, Any]) -> None:
        self._show(info)

    def _show(self, info: dict[str, Any], **figures: str) -> None:
        for name, form in figures.items():
            if info.get(name) is not None:
                self._figures[name] = form.format(**info)
        self._progress.update(
            self._task, completed=info["step"], figures="  ".join(self._figures.values())
        )


def _number(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon:.3f}"
