"""One process at a time: a lock on a file that ends with the process that holds it, however sudden.

The operating system keeps it (flock, or its like on Windows), so there is no stale lock after a
kill, a crash or a power cut.  The file stays where it is; it holds the number of the process.
Guarantees: two processes, or two threads, that have the lock at once are impossible where the file
system has locks.  Where it has none, as on some network drives, there is a warning instead.

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
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO

# Windows keeps others from reading what is locked: a byte far behind the number is.
FAR = 2**30


class Locked(RuntimeError):
    """Another process, or thread, has the lock; `process` is its number, if it can be known."""

    def __init__(self, process: int | None) -> None:
        self.process = process
        super().__init__(f"locked by process {process or 'unknown'}.")


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock on the file, which is made; the folder must be there.

    Where another one has it, waits for it to end, or raises `Locked`.
    """
    with open(path, "a+", encoding="ascii") as file:
        try:
            _take(file, wait)
        except BlockingIOError as error:
            raise Locked(_number_in(file)) from error
        except OSError as error:
            warnings.warn(
                f"{path} cannot be locked here ({error.strerror}): see to it yourself that no "
                "second process uses that folder at the same time.",
                stacklevel=3,
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
