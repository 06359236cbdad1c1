"""The picture of a run in a terminal, drawn anew a few times a second.

When the run has ended it shrinks to a line, so that several runs stay on one screen.
"""

from __future__ import annotations

from typing import Any

from rich import live
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from psac.app.cli.progress import NOT_PRIVATE, SPARKS, Progress, clock, price, sparks

BAR = 40
FIGURES = (10, 24)  # least widths of a name and of its value, so that groups are aligned


class Live:
    """An observer of `psac.training.train`, and a context."""

    def __init__(self, console: Console, title: str) -> None:
        self._progress = Progress(title)
        self._end: dict[str, Any] | None = None
        self._waiting = Spinner("dots", f" {title}: reading the data, calibrating the noise")
        self._live = live.Live(console=console, refresh_per_second=8, get_renderable=self._picture)

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def started(self, info: dict[str, Any]) -> None:
        self._progress.started(info)

    def stepped(self, info: dict[str, Any]) -> None:
        self._progress.stepped(info)

    def evaluated(self, info: dict[str, Any]) -> None:
        self._progress.evaluated(info)

    def ended(self, info: dict[str, Any]) -> None:
        self._end = info

    def _picture(self) -> RenderableType:
        if self._end is not None:
            return self._line(self._end)
        return self._training() if self._progress.facts else self._waiting

    def _line(self, end: dict[str, Any]) -> Text:
        return Text.assemble(
            ("✓ ", "bold green"),
            (self._progress.title, "bold"),
            f"  {end['accuracy']:.1%}{'' if end.get('public') else ' (not private)'} at epsilon "
            f"{price(end['epsilon'])}, in "
            f"{clock(end['seconds'])}",
        )

    def _training(self) -> Group:
        progress = self._progress
        public, sensitive = progress.public(), progress.sensitive()
        left = public.pop("time left", "")
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(progress.title, "bold"),
            ProgressBar(total=progress.facts["planned_steps"], completed=progress.step, width=BAR),
            progress.place(),
            Text(f"{left} left" if left else "", "cyan"),
        )
        plan = Text("\n".join(progress.plan()), "dim")
        warnings = [Text(text, "bold red") for text in progress.warnings()]
        marked = Text(f"{NOT_PRIVATE}: for your eyes, not for publication", "yellow")
        inside = [marked, self._figures(sensitive, "yellow")] if sensitive else []
        return Group(head, plan, *warnings, self._figures(public, "default"), *inside)

    def _figures(self, figures: dict[str, str], style: str) -> Table:
        drawn: dict[str, RenderableType] = {
            "accuracy": Text(sparks(self._progress.accuracies), "cyan"),
            "epsilon": self._budget(),
            "loss": Text(sparks(self._progress.losses), "cyan"),
        }
        table = Table.grid(padding=(0, 2), pad_edge=True)
        for width in FIGURES:
            table.add_column(min_width=width)
        for name, value in figures.items():
            table.add_row(Text(name, style), value, drawn.get(name, ""))
        return table

    def _budget(self) -> RenderableType:
        planned, spent = self._progress.facts["planned_epsilon"], self._progress.epsilon
        if planned is None or spent is None:
            return ""
        return ProgressBar(total=planned, completed=spent, width=SPARKS, complete_style="cyan")
