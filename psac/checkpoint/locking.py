"""One process at a time: a lock on a file that ends with the process that holds it.

The operating system holds it (flock, or its like on Windows), so a kill, a crash or a power cut
leaves no stale lock.  The file stays; it holds the process id.  Guarantees: no two processes or
threads have the lock at once, if the file system supports locks.  If it does not, as on some
network drives, there is a warning.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder, ".lock")):
...     try:
...         with locked(Path(folder, ".lock"), wait=False):
...             pass
...     except Locked as refusal:
...         refusal.process == os.getpid()
True
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from psac.errors import warn

# Windows keeps others from reading what is locked: a byte far behind the number is.
FAR = 2**30


class Locked(RuntimeError):
    """Another process or thread has the lock; `process` is its id, if known."""

    def __init__(self, process: int | None) -> None:
        self.process = process
        super().__init__(f"locked by process {process or 'unknown'}.")


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock on the file, which is created in an existing folder.

    If another process has it, waits, or raises `Locked`.
    """
    with open(path, "a+", encoding="ascii") as file:
        try:
            _take(file, wait)
        except BlockingIOError as error:
            raise Locked(_number_in(file)) from error
        except OSError as error:
            warn(
                f"{path} cannot be locked here ({error.strerror}): make sure that no second "
                "process uses that folder at the same time.",
                UserWarning,
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _number_in(file: IO[str]) -> int | None:
    file.seek(0)
    text = file.read().strip()
    return int(text) if text.isdigit() else None


if sys.platform == "win32":
    import msvcrt

    def _take(file: IO[str], wait: bool) -> None:
        file.seek(FAR)
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                if not wait:
                    raise BlockingIOError from error
                # It gives up after ten seconds; others may take longer.
else:
    import fcntl

    def _take(file: IO[str], wait: bool) -> None:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
