"""What a run has released, written down in two places before each step is handed on.

    run/checkpoint.safetensors.journal     beside each checkpoint (see `psac.checkpoint.journal`)
    ~/.local/state/psac/0c6f...            the record: one file a run, named by the run's id

A backup of a run's folder holds checkpoint and journal, so restoring it would forget what was
released since.  The record is outside that folder, and is not restored with it.  The larger count
is used.  Guarantees:

- The record has the format of a journal and the same promises: it is only ever appended to, by all
  processes that train the run; a line is written before its gradient is handed on; a step that
  cannot be added to a record that was begun is not released.
- The record is never a link to a journal: whatever overwrites the one leaves the other.
- It is created when a secure run first saves or loads a checkpoint.  A run that is never saved
  leaves nothing behind, and neither does a seeded one, which is not private.
- If no record can be written, training continues, and the caller is told why, once.

The directory is $PSAC_STATE_DIR, else $XDG_STATE_HOME/psac, else the platform's own: on Linux
~/.local/state/psac, on macOS ~/Library/Application Support/psac, on Windows %LOCALAPPDATA%/psac.
Only its owner can read it (mode 0700); it holds ids and counts.

A record takes three bytes a step.  It is never compacted: a process that has the old file open
would go on appending to it, and its steps would be lost.  Delete a record when nobody will resume
its run.  Left to others: steps on a machine with another state directory (`private.charge` counts
them), and network drives, where lines that two machines append at the same moment may collide.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from psac.checkpoint.journal import Journal, journal_of, spent_in


def state_directory() -> Path:
    """Where the records are; raises OSError if the user has no home directory."""
    try:
        if own := os.environ.get("PSAC_STATE_DIR"):
            return Path(own).expanduser().absolute()
        shared = Path(os.environ.get("XDG_STATE_HOME", ""))
        # The XDG specification has relative paths ignored.
        return (shared if shared.is_absolute() else _usual_place()) / "psac"
    except RuntimeError as error:  # pathlib found no home
        raise OSError(str(error)) from error


def _usual_place() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path.home() / ".local" / "state"


def record_of(run: str) -> Path:
    """The file of this run.  A forged id cannot lead outside the directory."""
    if not re.fullmatch("[0-9a-f]{16}", run):
        raise ValueError(f"the id of the run is {run!r}: it must be 16 hexadecimal digits.")
    return state_directory() / run


def spent_on_record(run: str) -> int | None:
    """How many steps the record counts; None if there is none that can be read."""
    try:
        return spent_in([record_of(run)], run)
    except OSError:
        return None


class Releases:
    """The journals and the record of a run; called with the steps of a release."""

    def __init__(self, run: str, *, secure: bool) -> None:
        self.run, self.secure = run, secure
        self.journal, self.record = Journal(run), Journal(run)
        self._told = False

    def __call__(self, steps: int) -> None:
        self.journal(steps)
        self.record(steps)

    def keep_beside(self, path: Path, spent: int) -> str | None:
        """From here on every release is written down beside this checkpoint, too.

        Returns why there is no record, the first time that this is so.
        """
        self.journal.keep_at(journal_of(path).absolute(), spent)
        fault = self._keep_record(spent) if self.secure else None
        if fault is None or self._told:
            return None
        self._told = True
        return fault

    def _keep_record(self, spent: int) -> str | None:
        """What is wrong if the record cannot be written, which the next call tries again."""
        try:
            path = record_of(self.run)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.record.keep_at(path, spent)
        except OSError as error:
            self.record = Journal(self.run)
            return (
                f"no record of what run {self.run} releases can be written here ({error}): if the "
                "run's folder is restored from a backup, the steps since then will not be counted. "
                "Set PSAC_STATE_DIR to a writable directory."
            )
        return None
