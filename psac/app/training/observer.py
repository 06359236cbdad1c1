"""Who watches a run: a progress bar, a test, a notebook.

Each method gets the very line that is written to metrics.jsonl (see metrics.py), after it was
written; `stepped` for the logged steps alone.  A line with `"private": false` holds values of
private records without noise.  An observer cannot change the run; what it raises ends it.
"""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    def started(self, info: dict[str, Any]) -> None: ...

    def stepped(self, info: dict[str, Any]) -> None: ...

    def evaluated(self, info: dict[str, Any]) -> None: ...

    def ended(self, info: dict[str, Any]) -> None: ...


class Silent:
    """Watches nothing."""

    def started(self, info: dict[str, Any]) -> None: ...

    def stepped(self, info: dict[str, Any]) -> None: ...

    def evaluated(self, info: dict[str, Any]) -> None: ...

    def ended(self, info: dict[str, Any]) -> None: ...


class Together:
    """Several observers, told one after the other."""

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
