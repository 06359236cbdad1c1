"""The cache: files of data sets on disk, fetched when they are missing or damaged.

Its folder is PSAC_CACHE, else XDG_CACHE_HOME/psac, else ~/.cache/psac, with a folder per data set.
Guarantees:

- Never half a file.  A download goes to a scratch folder; what passes its SHA-256 is written beside
  its place, synced and renamed.  A kill at any moment leaves the old file, the new one, or none,
  and the next fetch starts anew.
- Every read is checked: a file that is not the one that was published is fetched again, once.
- Processes that fetch the same data set wait for one another and then find it there.

Sources are tried in their order; what each of them said is in the error if none can help.
`obtained.json` beside the files says which one did.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from psac.app.data.entry import DataNotFound, Entry
from psac.app.data.sources import Contents, Progress, SourceFailed
from psac.checkpoint.locking import locked
from psac.checkpoint.saving import write_atomically

NOTE = "obtained.json"


def cache_folder() -> Path:
    """Where the data sets are, each in a folder of its own."""
    if own := os.environ.get("PSAC_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "psac"


def obtained(entry: Entry) -> str | None:
    """How the copy in the cache came, if there is one."""
    return _note(entry).get("source")


def stored(entry: Entry, file: str) -> bytes | None:
    """The content of a file in the cache, or None if it is not there or not whole."""
    checksum = entry.files[file] or _note(entry).get("sha256", {}).get(file)
    try:
        content = (cache_folder() / entry.name / file).read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == checksum else None


def fetch(entry: Entry, progress: Progress | None = None) -> Path:
    """The folder with the files of a data set, fetched as far as they are not there."""
    folder = cache_folder() / entry.name
    if not entry.sources:
        raise explain(entry, "no command can fetch it")
    with _locked(folder):
        damaged = [file for file in entry.files if stored(entry, file) is None]
        if damaged:
            _warn_of_damage(folder, damaged)
            contents, source = _from_first_source(entry, folder, progress or _silent)
            _put(folder, contents, source)
    return folder


def explain(entry: Entry, what: str, reasons: Sequence[str] = ()) -> DataNotFound:
    """The error for data that are not there: what was looked for, why not, what to do."""
    tried = "".join(f"\n  - {reason}" for reason in reasons)
    command = f"Get it with `psac data get {entry.name}` where there is a network. "
    wanted = entry.layout or ", ".join(entry.files)
    return DataNotFound(
        f"{entry.name}: {what}.{tried}\n{command if entry.sources else ''}What you have downloaded "
        f"from {entry.page} is read with root=FOLDER, a folder that holds {wanted}."
    )


def _from_first_source(entry: Entry, folder: Path, progress: Progress) -> tuple[Contents, str]:
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
    raise explain(entry, f"looked for {wanted} in {folder}; no source could give it", reasons)


def _refuse_other_files(entry: Entry, contents: Contents) -> None:
    for file, checksum in entry.files.items():
        if checksum is not None and hashlib.sha256(contents[file]).hexdigest() != checksum:
            raise SourceFailed(f"{file} has another SHA-256 than {checksum}")


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
                f"{folder / file} is damaged (its SHA-256 does not fit) and is fetched again.",
                stacklevel=2,
            )


def _note(entry: Entry) -> dict:
    try:
        return json.loads((cache_folder() / entry.name / NOTE).read_bytes())
    except (OSError, ValueError):
        return {}


def _silent(what: str, bytes_done: int, bytes_total: int | None) -> None:
    """No progress is shown."""


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder for one attempt; what a killed process left is removed first."""
    scratch = folder / ".scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise DataNotFound(
            f"the cache {folder} cannot be written ({error.strerror}). Set PSAC_CACHE to a folder "
            "that can."
        ) from error
    with locked(folder / ".lock"):
        yield
