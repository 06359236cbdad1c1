"""How much a run has released, on disk: one more line before each step is handed on.

    0c6f...         the id of the run
    120             so many steps were spent at least, when a checkpoint was saved or loaded
    +1              one more
    @/other/place   a journal of the same run that is not the same file

`<checkpoint>.journal` lies beside every checkpoint of a run.  Guarantees:

- Whichever checkpoint of a run is loaded, old or new, all that the run has released since then is
  known, by whatever process: all its journals are written to.  Those on one file system are links
  to one file, so that a step costs one short write, however many checkpoints there are.
- A journal may be moved with its checkpoint, while the run goes on.  A checkpoint that was copied
  or renamed alone finds the journal of another checkpoint of its run in its folder.
- A line is written when the call returns, and survives the process.  If it cannot be written, the
  step is not released.  A journal that was deleted stops nothing: its file lives on without a name,
  and nobody can resume from what is gone.
- A checkpoint that takes the place of another run's has a new journal.

Left to others: two processes that go on from one checkpoint at the same time are known to those who
resume later, but not to each other.  Journals of psac 0.1 have no id, and are read.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from psac.atomic import write_atomically


def journal_of(path: Path) -> Path:
    return path.with_name(path.name + ".journal")


class Journal:
    """The journals of a run that this process writes to; called with the steps of a release."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._files: dict[tuple[int, int], BinaryIO] = {}
        self._places: list[Path] = []  # where those files are, or were

    def __call__(self, steps: int) -> None:
        self._write(f"+{steps}")

    def _write(self, line: str) -> None:
        data = f"{line}\n".encode()
        for file in self._files.values():
            if file.write(data) != len(data):
                raise OSError(f"{file.name} could not be written: is the disk full?")

    def keep_beside(self, path: Path, spent: int) -> None:
        """From here on all that is released is written down beside the checkpoint, too."""
        place = journal_of(path).absolute()
        self._forget_deleted()
        known = identity(place) in self._files or run_of(place) == self.run
        if not known and not self._linked(place):
            write_atomically(place, f"{self.run}\n".encode())
        for journal in reachable([place], self.run):
            self._open(journal)
        self._write(str(spent))

    def _linked(self, place: Path) -> bool:
        """Whether `place` is now one more name of a journal that we have."""
        part = place.with_name(f"{place.name}.{os.getpid()}.part")
        for known in self._places:
            if identity(known) in self._files:
                # Another file system, or one without links: the next, or a journal of its own.
                with contextlib.suppress(OSError):
                    os.link(known, part)
                    os.replace(part, place)
                    return True
        return False

    def _open(self, place: Path) -> None:
        key = identity(place)
        if key is not None and key not in self._files:
            others = [known for known in self._places if identity(known) in self._files]
            # Unbuffered: what was written survives the end of the process, however sudden.
            self._files[key] = open(place, "ab", buffering=0)  # noqa: SIM115
            for known in [place, *others] if others else []:
                self._write(f"@{known}")
        self._places = [place, *(known for known in self._places if known != place)]

    def _forget_deleted(self) -> None:
        for key, file in list(self._files.items()):
            if os.fstat(file.fileno()).st_nlink == 0:
                self._files.pop(key).close()

    def __del__(self) -> None:
        for file in getattr(self, "_files", {}).values():
            file.close()


def identity(place: Path) -> tuple[int, int] | None:
    """What all names of one file have in common; None if there is no file."""
    try:
        found = place.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def spent_beside(path: Path, run: str | None) -> int | None:
    """What the journals that the checkpoint can reach say of its run; None if there is none.

    `run` is None for checkpoints of psac 0.1, which believe in the journal of their own name, and
    one of that name without an id is believed in any case.
    """
    place = journal_of(path).absolute()
    found = [place] if place.exists() and (run is None or run_of(place) is None) else []
    if run is not None:
        found += reachable([place, *sorted(place.parent.glob("*.journal"))], run)
    return max(map(steps_in, found), default=None)


def reachable(places: list[Path], run: str) -> list[Path]:
    """The journals of the run among these, and those that they name."""
    found: list[Path] = []
    while places:
        place, *places = places
        if place not in found and run_of(place) == run:
            found.append(place)
            places += [Path(line[1:]) for line in lines_of(place) if line.startswith("@")]
    return found


def run_of(place: Path) -> str | None:
    """The id in the first line, if there is one."""
    try:
        with open(place, encoding="utf-8", errors="replace") as file:
            first = file.readline().strip()
    except OSError:
        return None
    return first if len(first) == 16 else None


def lines_of(place: Path) -> list[str]:
    lines = place.read_text(encoding="utf-8").splitlines()
    return lines[1:] if run_of(place) else lines


def steps_in(place: Path) -> int:
    """How many steps the journal counts."""
    spent = 0
    for line in lines_of(place):
        try:
            if line.startswith("+"):
                spent += int(line)
            elif not line.startswith("@"):
                spent = max(spent, int(line))
        except ValueError as error:
            raise ValueError(
                f"{place} is damaged: it has the line {line!r}. Put in the number of steps that "
                "were released up to there, or a larger one."
            ) from error
    return spent
