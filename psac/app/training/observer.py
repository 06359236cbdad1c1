"""Observers of a run: a progress bar, a test, a notebook.

Each method gets a line of metrics.jsonl (metrics.py) after it was written; `stepped` gets logged
steps only.  A line with `"private": false` holds values of private records without noise.  An
observer cannot change the run; an exception that it raises ends the run.
"""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    def started(self, info: dict[str, Any]) -> None: ...

    def stepped(self, info: dict[str, Any]) -> None: ...

    def evaluated(self, info: dict[str, Any]) -> None: ...

    def ended(self, info: dict[str, Any]) -> None: ...


class Silent:
    """An observer that does nothing."""

    def _ignore(self, info: dict[str, Any]) -> None: ...

    started = stepped = evaluated = ended = _ignore


class Together:
    """Several observers, called one after the other."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def started(self, info: dict[str, Any]) -> None:
        for observer in self._observers:
            observer.started(info)

    def stepped(self, info: dict[str, Any]) -> None:
        for observer in self._observers:
            observer.stepped(info)

    def evaluated(self, info: dict[str, Any]) -> None:
        for observer in self._observers:
            observer.evaluated(info)

    def ended(self, info: dict[str, Any]) -> None:
        for observer in self._observers:
            observer.ended(info)
