"""The cache: files of data sets and weights on disk, fetched when they are missing or damaged.

Its folder is PSAC_CACHE, else XDG_CACHE_HOME/psac, else ~/.cache/psac.  A data set has a folder in
it, and so has a pretrained model.
Guarantees:

- There are no partial files.  A download goes to a scratch folder; if its SHA-256 is right, it is
  written atomically.  A kill at any moment leaves the old file, the new one, or none.
- Every read is checked; a file with a wrong SHA-256 is fetched again, once.
- If several processes need the same data set, one fetches it and the others wait.

Sources are tried in order; if all fail, the error has the reasons.  `obtained.json` beside the
files names the source.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from psac.app.data.entry import DataNotFound, Stored
from psac.app.data.sources import Contents, Progress, SourceFailed
from psac.cache import cache_folder
from psac.checkpoint.locking import locked
from psac.checkpoint.saving import write_atomically

NOTE = "obtained.json"


def obtained(entry: Stored) -> str | None:
    """The source of the copy in the cache, if there is one."""
    return _note(entry).get("source")


def stored(entry: Stored, file: str) -> bytes | None:
    """The content of a file in the cache; None if it is missing or damaged."""
    checksum = entry.files[file] or _note(entry).get("sha256", {}).get(file)
    try:
        content = (cache_folder() / entry.name / file).read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == checksum else None


def fetch(entry: Stored, progress: Progress | None = None) -> Path:
    """Fetches what is missing of a data set, and returns its folder."""
    folder = cache_folder() / entry.name
    if not entry.sources:
        raise explain(entry, "it cannot be fetched automatically")
    with _locked(folder):
        damaged = [file for file in entry.files if stored(entry, file) is None]
        if damaged:
            _warn_of_damage(folder, damaged)
            contents, source = _from_first_source(entry, folder, progress or _silent)
            _put(folder, contents, source)
    return folder


def explain(entry: Stored, what: str, reasons: Sequence[str] = ()) -> DataNotFound:
    """The error for missing data: what was looked for, why it failed, what to do."""
    tried = "".join(f"\n  - {reason}" for reason in reasons)
    command = f"Run `psac data get {entry.name}` on a machine with a network. "
    wanted = entry.layout or ", ".join(entry.files)
    return DataNotFound(
        f"{entry.name}: {what}.{tried}\n{command if entry.sources else ''}Or download it from "
        f"{entry.page} and pass {entry.own_folder}, a folder that holds {wanted}."
    )


def _from_first_source(entry: Stored, folder: Path, progress: Progress) -> tuple[Contents, str]:
    reasons = []
    for source in entry.sources:
        with _scratch(folder) as scratch:
            try:
                contents = source.fetch(scratch, progress)
                _refuse_other_files(entry, contents)
                return contents, str(source)
            except SourceFailed as error:
                reasons.append(f"{source}: {error}")
    wanted = ", ".join(entry.files)
    raise explain(
        entry, f"looked for {wanted} in {folder}, but no source could provide it", reasons
    )


def _refuse_other_files(entry: Stored, contents: Contents) -> None:
    for file, checksum in entry.files.items():
        if checksum is not None and hashlib.sha256(contents[file]).hexdigest() != checksum:
            raise SourceFailed(f"{file} does not have the SHA-256 {checksum}")


def _put(folder: Path, contents: Contents, source: str) -> None:
    for file, content in contents.items():
        write_atomically(folder / file, content)
    sums = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
    note = json.dumps({"source": source, "sha256": sums}, indent=2)
    write_atomically(folder / NOTE, note.encode())


def _warn_of_damage(folder: Path, files: list[str]) -> None:
    for file in files:
        if (folder / file).exists():
            warnings.warn(
                f"{folder / file} is damaged (wrong SHA-256) and is fetched again.",
                stacklevel=2,
            )


def _note(entry: Stored) -> dict:
    try:
        return json.loads((cache_folder() / entry.name / NOTE).read_bytes())
    except (OSError, ValueError):
        return {}


def _silent(what: str, bytes_done: int, bytes_total: int | None) -> None:
    """Shows no progress."""


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder for one attempt; files of a killed process are removed first."""
    scratch = folder / ".scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder for one process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise DataNotFound(
            f"the cache {folder} cannot be written ({error.strerror}). Set PSAC_CACHE to a folder "
            "that is writable."
        ) from error
    with locked(folder / ".lock"):
        yield
