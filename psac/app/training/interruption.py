"""Ctrl-C between steps, not within one.

A KeyboardInterrupt can strike between the release of a gradient and the optimizer's step, and what
is saved then is no state that the run was ever in.  So within `Interruption` the first Ctrl-C, or
the request of a scheduler to end (SIGTERM, or SIGUSR1 where there is one), only sets `requested`,
and the trainer looks at it after each step.  The second one is a KeyboardInterrupt at once: the
last checkpoint stays valid.  Signals that the program handles itself, and threads other than the
main one, are left alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
if sys.platform != "win32":
    DEFAULTS[signal.SIGUSR1] = signal.SIG_DFL


class Stopped(KeyboardInterrupt):
    """By the signal of this number."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        self.number = number
        super().__init__(message)


class Interrupted(Stopped):
    """Training was interrupted after a step, and saved."""

    def __init__(self, folder: str | os.PathLike[str], number: int = signal.SIGINT) -> None:
        self.folder = folder
        super().__init__(
            f"training was interrupted and is saved in {folder}. To go on where it stopped: "
            "psac.training.train(recipe, folder, resume=True), with the same recipe.",
            number,
        )


class Interruption:
    def __init__(self) -> None:
        self.requested = False
        self.number: int = signal.SIGINT  # of the signal that was the request
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number, default in DEFAULTS.items():
                if signal.getsignal(number) == default:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested, self.number = True, number
