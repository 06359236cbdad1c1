"""Ctrl-C while the command `psac` is still importing: one sentence, and no traceback.

Importing torch takes seconds, in which `psac.cli` cannot catch anything yet.  In any other program
that imports psac, nothing is changed.
"""

import sys
from pathlib import Path
from types import TracebackType

STOPPED = "Stopped before anything was done."


def is_command(words: list[str]) -> bool:
    """
    >>> is_command(["python", "-m", "psac", "train"]), is_command(["python", "/venv/bin/psac"])
    (True, True)
    >>> is_command(["python", "mine.py", "psac"])
    False
    """
    return words[1:3] == ["-m", "psac"] or (len(words) > 1 and Path(words[1]).stem == "psac")


def _hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(STOPPED, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


if is_command(sys.orig_argv) and sys.excepthook is sys.__excepthook__:
    sys.excepthook = _hook
