"""What you see while a run trains.

    a terminal      a live display, redrawn a few times a second; one line when the run has ended
    elsewhere       plain lines: one for each evaluation, and one whenever half a minute has passed
    --quiet         nothing
    --json          the lines of metrics.jsonl, on stdout

Figures that come from private records without noise, such as the training loss, are shown apart
and marked as not private.  Views are observers of `psac.training.train` and contexts.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from rich import live
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from psac.app.cli.progress import NOT_PRIVATE, SPARKS, Progress, clock, price, sparks
from psac.app.training.observer import Observer, Silent

SECONDS_BETWEEN_LINES = 30.0
BAR = 40  # characters
COLUMNS = (10, 24)  # least width of a name and of its value, so that groups are aligned


def view_of(
    console: Console, title: str, *, quiet: bool = False, as_json: bool = False
) -> contextlib.AbstractContextManager[Observer]:
    if as_json:
        return contextlib.nullcontext(JsonLines())
    if quiet:
        return contextlib.nullcontext(Silent())
    if console.is_terminal:
        return Live(console, title)
    return contextlib.nullcontext(Lines(console, title))


class JsonLines:
    """The lines of metrics.jsonl, as they are written."""

    def _print(self, info: dict[str, Any]) -> None:
        print(json.dumps(info), flush=True)

    started = stepped = evaluated = ended = _print


class Lines(Progress):
    """Plain lines, for output that is not a terminal."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(title)
        self._console, self._printed = console, time.monotonic()

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
        self._printed = time.monotonic()

    def started(self, info: dict[str, Any]) -> None:
        super().started(info)
        self._print(f"{self.title}: {', '.join(self.plan())}")
        for warning in self.warnings():
            self._print(warning)

    def stepped(self, info: dict[str, Any]) -> None:
        super().stepped(info)
        if time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._show()

    def evaluated(self, info: dict[str, Any]) -> None:
        super().evaluated(info)
        self._show()

    def _show(self) -> None:
        public = ", ".join(f"{name} {value}" for name, value in self.public().items())
        inside = ", ".join(f"{name} {value}" for name, value in self.sensitive().items())
        parts = [public, f"{NOT_PRIVATE}: {inside}" if inside else ""]
        self._print(f"  {self.place()}: {'; '.join(filter(None, parts))}")


class Live(Progress):
    """A display that is redrawn a few times a second."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(title)
        self._waiting = Spinner("dots", f" {title}: reading the data, calibrating the noise")
        self._live = live.Live(console=console, refresh_per_second=8, get_renderable=self._display)

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _display(self) -> RenderableType:
        if self.end:
            return self._line(self.end)
        return self._training() if self.facts else self._waiting

    def _line(self, end: dict[str, Any]) -> Text:
        return Text.assemble(
            ("✓ ", "bold green"),
            (self.title, "bold"),
            f"  {end['accuracy']:.1%}{'' if end.get('public') else ' (not private)'} at epsilon "
            f"{price(end['epsilon'])}, in "
            f"{clock(end['seconds'])}",
        )

    def _training(self) -> Group:
        public, sensitive = self.public(), self.sensitive()
        left = public.pop("time left", "")
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self.title, "bold"),
            ProgressBar(total=self.facts["planned_steps"], completed=self.step, width=BAR),
            self.place(),
            Text(f"{left} left" if left else "", "cyan"),
        )
        plan = Text("\n".join(self.plan()), "dim")
        warnings = [Text(text, "bold red") for text in self.warnings()]
        marked = Text(f"{NOT_PRIVATE}: do not publish", "yellow")
        inside = [marked, self._figures(sensitive, "yellow")] if sensitive else []
        return Group(head, plan, *warnings, self._figures(public, "default"), *inside)

    def _figures(self, figures: dict[str, str], style: str) -> Table:
        drawn: dict[str, RenderableType] = {
            "accuracy": Text(sparks(self.accuracies), "cyan"),
            "epsilon": self._budget(),
            "loss": Text(sparks(self.losses), "cyan"),
        }
        table = Table.grid(padding=(0, 2), pad_edge=True)
        for width in COLUMNS:
            table.add_column(min_width=width)
        for name, value in figures.items():
            table.add_row(Text(name, style), value, drawn.get(name, ""))
        return table

    def _budget(self) -> RenderableType:
        planned, spent = self.facts["planned_epsilon"], self.epsilon
        if planned is None or spent is None:
            return ""
        return ProgressBar(total=planned, completed=spent, width=SPARKS, complete_style="cyan")
