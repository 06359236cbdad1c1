"""One run of `psac.app.training.many`, in this process.

The job comes as JSON on standard input; every line of the run's metrics goes to standard output,
and last a line `failed` if there is an error.  Whatever else is printed goes to standard error.
When nobody listens any more, the run ends, to go on from its checkpoint another time.
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
    order = json.load(sys.stdin)
    listener = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    teller = _Teller(listener)
    sys.excepthook = teller.failed
    if order["threads"]:
        torch.set_num_threads(order["threads"])
    folder = Path(order["folder"])
    recipe = Recipe.from_settings(order["recipe"])
    train(recipe, folder, resume=Run(folder).started, observer=teller)


class _Teller:
    """An observer that passes on all it hears."""

    def __init__(self, listener: TextIO) -> None:
        self._listener = listener

    def _tell(self, info: dict[str, Any]) -> None:
        print(json.dumps(info), file=self._listener, flush=True)

    started = stepped = evaluated = ended = _tell

    def failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """For sys.excepthook."""
        if not isinstance(error, (Interrupted, BrokenPipeError)):
            traceback.print_exception(kind, error, trace)
            self._tell({"kind": "failed", "message": str(error) or kind.__name__})
