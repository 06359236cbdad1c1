"""The child process of `psac.app.training.many`: trains one run.

The job comes as JSON on standard input.  The lines of metrics.jsonl go to standard output, followed
by a line of kind `failed` if there is an error; other output goes to standard error.  If the parent
is gone, the run stops and can be resumed from its checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import torch

from psac.app.training.interruption import Interrupted
from psac.app.training.recipe import Recipe
from psac.app.training.run import Run
from psac.app.training.trainer import train


def main() -> None:
    job = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reporter = _Reporter(output)
    sys.excepthook = reporter.failed
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    folder = Path(job["folder"])
    recipe = Recipe.from_settings(job["recipe"])
    train(recipe, folder, resume=Run(folder).started, observer=reporter)


class _Reporter:
    """An observer that passes on every line."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def _send(self, info: dict[str, Any]) -> None:
        print(json.dumps(info), file=self._output, flush=True)

    started = stepped = evaluated = ended = _send

    def failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """For sys.excepthook."""
        if not isinstance(error, (Interrupted, BrokenPipeError)):
            traceback.print_exception(kind, error, trace)
            self._send({"kind": "failed", "message": str(error) or kind.__name__})
