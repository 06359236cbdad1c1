"""How many steps a run has released: a line is appended to a file before each release.

    0c6f...         the id of the run
    120             at least this many steps were spent when a checkpoint was saved or loaded
    +1              one more
    @/other/path    another journal of the same run

`<checkpoint>.journal` lies beside every checkpoint of a run.  Guarantees:

- Whichever checkpoint of a run is loaded, old or new, its journal counts what the run has released
  since, in any process: a run writes to all its journals.  Those on one file system are links to
  one file, so a step costs one short write, however many checkpoints there are.
- A journal may be moved with its checkpoint while the run goes on.  A checkpoint that was copied or
  renamed alone finds the journal of another checkpoint of its run in its folder.
- A line is written when the call returns, and survives the process (a power cut may lose the last
  seconds).  If it cannot be written, the step is not released.  Deleting a journal does not stop
  the run.
- Lines are only appended.  Processes that resume one checkpoint at the same time add up.
- A checkpoint that replaces another run's gets a new journal.

Left to others: a copy of the folder has its own journal, as old as the copy
(`psac.checkpoint.releases` covers that); two processes that resume one checkpoint at the same time
are both counted by later ones, but not by each other.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from psac.checkpoint.atomic import write_atomically


def journal_of(path: Path) -> Path:
    return path.with_name(path.name + ".journal")


class Journal:
    """The journals of a run that this process writes to; called with the steps of a release."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._files: dict[tuple[int, int], BinaryIO] = {}
        self._paths: list[Path] = []  # where those files are, or were

    def __call__(self, steps: int) -> None:
        self._write(f"+{steps}")

    def _write(self, line: str) -> None:
        data = f"{line}\n".encode()
        for file in self._files.values():
            if file.write(data) != len(data):
                raise OSError(f"{file.name} could not be written: is the disk full?")

    def keep_at(self, path: Path, spent: int) -> None:
        """From here on every release is written to this file as well, after the `spent` steps."""
        self._forget_deleted()
        if run_of(path) != self.run and not self._linked(path):
            begin(path, self.run)
        journals = reachable([path], self.run)
        if not journals:
            raise OSError(f"{path} was written and cannot be read")
        for journal in journals:
            self._open(journal)
        self._write(str(spent))

    def _linked(self, path: Path) -> bool:
        """Whether `place` is now one more name of a journal that we have."""
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        for known in self._paths:
            if identity(known) in self._files:
                # Another file system, or one without links: the next, or a journal of its own.
                with contextlib.suppress(OSError):
                    os.link(known, part)
                    os.replace(part, path)
                    return True
        return False

    def _open(self, path: Path) -> None:
        key = identity(path)
        if key is not None and key not in self._files:
            others = [known for known in self._paths if identity(known) in self._files]
            # Unbuffered: what was written survives the end of the process, however sudden.
            self._files[key] = open(path, "ab", buffering=0)  # noqa: SIM115
            for known in [path, *others] if others else []:
                self._write(f"@{known}")
        self._paths = [path, *(known for known in self._paths if known != path)]

    def _forget_deleted(self) -> None:
        for key, file in list(self._files.items()):
            if os.fstat(file.fileno()).st_nlink == 0:
                self._files.pop(key).close()

    def __del__(self) -> None:
        for file in getattr(self, "_files", {}).values():
            file.close()


def begin(path: Path, run: str) -> None:
    """Creates the file.  If another process does so at the same time, both write to one file."""
    line, owner = f"{run}\n".encode(), run_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if owner is None:
        with open(path, "ab", buffering=0) as file:
            file.write(line)
    elif owner != run:
        write_atomically(path, line)


def identity(path: Path) -> tuple[int, int] | None:
    """What all names of one file have in common; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def spent_beside(path: Path, run: str) -> int | None:
    """How many steps the journals in the checkpoint's folder count; None if there are none."""
    path = journal_of(path).absolute()
    return spent_in([path, *sorted(path.parent.glob("*.journal"))], run)


def spent_in(paths: list[Path], run: str) -> int | None:
    """The most steps that a file of the run counts, of these and those they name."""
    return max(map(steps_in, reachable(paths, run)), default=None)


def reachable(paths: list[Path], run: str) -> list[Path]:
    """The journals of the run among these, and those that they name."""
    journals: list[Path] = []
    while paths:
        path, *paths = paths
        if path not in journals and run_of(path) == run:
            journals.append(path)
            paths += [Path(line[1:]) for line in lines_of(path) if line.startswith("@")]
    return journals


def run_of(path: Path) -> str | None:
    """The id in the first line; None if the file is empty or cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            first = file.readline()
    except OSError:
        return None
    return first.removesuffix("\n") if first else None


def lines_of(path: Path) -> list[str]:
    """The lines after the id, which two processes that began the file together both wrote."""
    run, *lines = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    return [line for line in lines if line != run]


def steps_in(path: Path) -> int:
    """How many steps the journal counts."""
    spent = 0
    for line in lines_of(path):
        try:
            if line.startswith("+"):
                spent += int(line)
            elif not line.startswith("@"):
                spent = max(spent, int(line))
        except ValueError as error:
            raise ValueError(
                f"{path} is damaged: it has the line {line!r}. Replace it by the number of steps "
                "released up to there, or a larger one."
            ) from error
    return spent
