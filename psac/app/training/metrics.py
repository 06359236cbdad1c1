"""The log of a run: metrics.jsonl, one JSON object per line, written during training.

    start       the plan; one line each time the run was started or resumed
    step        a logged step, about 400 of them at most
    evaluation  after every epoch
    warning     the text of a `PrivacyWarning`, for the owner of the run
    end         the last line of a finished run

Guarantees: only the last line can be torn, by a kill, and it is dropped on resuming; a resumed run
first drops the lines after its checkpoint, except warnings, so that no step is logged twice.
Numbers that are not finite become null, so an `epsilon` of null is infinite.  Lines with values of
private records without noise say `"private": false`; all other lines round the time to minutes,
because the time of a step depends on the size of its batch.  Results on public records say
`"public": true`.
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
        """Writes one line and returns its content."""
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
        """Drops the lines after this step and the end line; warnings stay."""
        lines = [
            line
            for line in read(self.path)
            if line["kind"] == "warning" or (line["step"] <= step and line["kind"] != "end")
        ]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        write_atomically(self.path, text.encode())


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of the file, without a torn last one; none if there is no file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines, damaged = parse(text[: text.rfind("\n") + 1])  # a torn last line was never counted
    if damaged:
        raise ValueError(
            f"{path} is damaged in line {', '.join(map(str, damaged[:5]))}. Restore it from a copy."
        )
    return lines


def parse(text: str) -> tuple[list[dict[str, Any]], list[int]]:
    """The lines that hold an object, and the numbers of the lines that do not."""
    lines, damaged = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            lines.append(value)
        else:
            damaged.append(number)
    return lines, damaged


def plain(tree: Any) -> Any:
    """The tree with None for numbers that are not finite."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [plain(value) for value in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    return tree
