"""What a person or a program sees while a run trains.

    a terminal      a picture that changes (live.py)
    elsewhere       plain lines: one at each evaluation, and one when half a minute went by
    --quiet         nothing
    --json          the lines of metrics.jsonl, on stdout

What comes from private records without noise, such as the training loss, is shown apart, and said
to be not private.  Views are observers of `psac.training.train` and contexts.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from rich.console import Console

from psac.app.cli.live import Live
from psac.app.cli.progress import NOT_PRIVATE, Progress
from psac.app.training.observer import Observer, Silent

SECONDS_BETWEEN_LINES = 30.0


def view_of(
    console: Console, title: str, *, quiet: bool = False, as_json: bool = False
) -> contextlib.AbstractContextManager[Observer]:
    """The view that fits."""
    if as_json:
        return contextlib.nullcontext(JsonLines())
    if quiet:
        return contextlib.nullcontext(Silent())
    if console.is_terminal:
        return Live(console, title)
    return contextlib.nullcontext(Lines(console, title))


class JsonLines:
    """Each line as it is written to metrics.jsonl."""

    def _tell(self, info: dict[str, Any]) -> None:
        print(json.dumps(info), flush=True)

    started = stepped = evaluated = ended = _tell


class Lines:
    """Plain lines."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._progress = console, Progress(title)
        self._last = time.monotonic()

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
        self._last = time.monotonic()

    def started(self, info: dict[str, Any]) -> None:
        self._progress.started(info)
        self._print(f"{self._progress.title}: {', '.join(self._progress.plan())}")
        for warning in self._progress.warnings():
            self._print(warning)

    def stepped(self, info: dict[str, Any]) -> None:
        self._progress.stepped(info)
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._tell(self._progress.place())

    def evaluated(self, info: dict[str, Any]) -> None:
        self._progress.evaluated(info)
        self._tell(self._progress.place())

    def ended(self, info: dict[str, Any]) -> None: ...

    def _tell(self, place: str) -> None:
        progress = self._progress
        public = ", ".join(f"{name} {value}" for name, value in progress.public().items())
        inside = ", ".join(f"{name} {value}" for name, value in progress.sensitive().items())
        told = [public, f"{NOT_PRIVATE}: {inside}" if inside else ""]
        self._print(f"  {place}: {'; '.join(filter(None, told))}")
