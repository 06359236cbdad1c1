"""How to reproduce a run: its command, settings and versions."""

import shlex
from typing import Any

from psac.app.reporting.html import Html, element, table, unfold
from psac.app.reporting.snapshot import RunSnapshot

SHOWN_APART = ("command", "resumed")


def reproduction(run: RunSnapshot) -> Html | None:
    """The section; None if the run has no data for it."""
    command = run.environment.get("command")
    if isinstance(command, list):
        command = shlex.join(str(word) for word in command)
    settings = table(["setting", "value"], _rows(run.recipe), caption="Settings", texts=["value"])
    machine = {k: v for k, v in run.environment.items() if k not in SHOWN_APART}
    again = [["resumed", str(entry.get("date"))] for entry in _resumed(run)]
    versions = table(["what", "value"], _rows(machine) + again, caption="Versions", texts=["value"])
    if not (command or run.recipe or machine):
        return None
    exact = (
        "The same seed and versions give the same result, bit by bit."
        if run.secure is False
        else "Each run draws new noise, so the accuracy will differ a little."
    )
    return element(
        "section",
        element("h2", "How to reproduce this run"),
        element("p", exact, class_="about"),
        element("pre", element("code", str(command)), tabindex=0) if command else None,
        unfold("All settings", settings) if run.recipe else None,
        unfold("Versions and machine", versions) if machine else None,
        id="repeat",
    )


def _resumed(run: RunSnapshot) -> list[dict[str, Any]]:
    """The environments in which the run was resumed."""
    sessions = run.environment.get("resumed")
    return (
        [entry for entry in sessions if isinstance(entry, dict)]
        if isinstance(sessions, list)
        else []
    )


def _rows(values: Any, prefix: str = "") -> list[list[str]]:
    """Nested tables are written as a.b."""
    rows: list[list[str]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            rows += _rows(value, f"{prefix}{key}.")
        else:
            rows.append([f"{prefix}{key}", str(value)])
    return rows
