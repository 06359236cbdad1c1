"""The story of a run, one JSON object a line, written while it happens.

    start       what was planned; one for each time that the run was started or resumed
    step        a logged step, at most about 400 of them
    evaluation  after every epoch
    warning     a `PrivacyWarning`, in full: for the owner of the run
    end         the last line of a finished run

Guarantees: a line is whole or, after a kill, the last one and dropped on resuming; a resumed run
first drops what was written after its checkpoint, warnings excepted, so that no step is told twice.
Numbers that are not finite, for which JSON has no word, are null: an `epsilon` of null is infinite.
Lines that hold values of private records without noise say `"private": false`; the others tell the
time in minutes, because the time of a step tells how many records were drawn.  Results on records
that somebody called public say `"public": true`.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from psac.app.training.clock import minute
from psac.checkpoint.saving import write_atomically


class MetricsLog:
    """Appends to metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings = {line["text"] for line in read(path) if line["kind"] == "warning"}

    def write(self, kind: str, **values: Any) -> dict[str, Any]:
        """Writes one line and returns what it says."""
        now = time.time() if values.get("private") is False else minute(time.time())
        line = plain({"kind": kind, "time": now, **values})
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        return line

    def warn(self, text: str, *, step: int) -> None:
        """Writes a warning, once."""
        if text not in self.warnings:
            self.warnings.add(text)
            self.write("warning", step=step, text=text)

    def rewind(self, step: int) -> None:
        """Drops what was written after this step, and the end; a warning stays."""
        lines = [
            line
            for line in read(self.path)
            if line["kind"] == "warning" or (line["step"] <= step and line["kind"] != "end")
        ]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        write_atomically(self.path, text.encode())


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of the file; none if there is no file."""
    if not path.exists():
        return []
    *whole, _ = path.read_text(encoding="utf-8").split("\n")  # what follows the last \n is torn
    return [json.loads(line) for line in whole]


def plain(tree: Any) -> Any:
    """The tree with null for numbers that are not finite."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [plain(value) for value in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    return tree
