"""Handles Ctrl-C between steps instead of within one.

A KeyboardInterrupt between the release of a gradient and the step of the optimizer would save a
state that the run was never in.  Within `Interruption`, the first Ctrl-C, SIGTERM or SIGUSR1 only
sets `requested`, which the trainer checks after each step.  The second one raises KeyboardInterrupt
at once; the last checkpoint stays valid.  Signals that the program handles itself, and threads
other than the main one, are left alone.
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
    """Stopped by the signal of this number."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        self.number = number
        super().__init__(message)


class Interrupted(Stopped):
    """Training was interrupted after a step, and saved."""

    def __init__(self, folder: str | os.PathLike[str], number: int = signal.SIGINT) -> None:
        self.folder = folder
        super().__init__(
            f"training was interrupted and saved in {folder}. To continue: "
            "psac.training.train(recipe, folder, resume=True), with the same recipe.",
            number,
        )


class LastingInterrupt:
    """A context in which Ctrl-C raises KeyboardInterrupt at its end, if it was swallowed before.

    Some packages swallow it while they are imported, and a long training would start all the same.
    """

    def __init__(self) -> None:
        self._heard, self._is_installed = False, False

    def __enter__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) == signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._is_installed = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._heard and kind is None:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._heard = True
        signal.default_int_handler(number, frame)


class Interruption:
    def __init__(self) -> None:
        self.requested = False
        self.number: int = signal.SIGINT  # of the signal
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
