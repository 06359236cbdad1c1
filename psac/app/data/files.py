"""The files that a data set is read from: those of the cache, or those in a folder of the user's.

From the cache every file is checked by SHA-256 and, if need be, fetched (`psac.app.data.store`).
In a user's folder, nothing is fetched, changed or checked beyond being readable: it may hold
another version.  There a file is also found with `.gz` at its end, and in the folders that other
libraries and the official archives put it in.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.sources import Progress
from psac.app.data.store import cache_folder, explain, fetch, stored


class CachedFiles:
    """Files of the cache; with download=False only those that are there already."""

    root = None

    def __init__(self, entry: Entry, *, download: bool, progress: Progress | None) -> None:
        self._entry, self._download, self._progress = entry, download, progress

    def read(self, name: str) -> bytes:
        content = stored(self._entry, name)
        if content is None and self._download:
            fetch(self._entry, self._progress)
            content = stored(self._entry, name)
        if content is None:
            place = cache_folder() / self._entry.name / name
            state = "is damaged (its SHA-256 does not fit)" if place.exists() else "is not there"
            raise explain(self._entry, f"{place} {state}")
        return content


class FolderFiles:
    """Files in a folder that the user points at."""

    def __init__(self, entry: Entry, root: Path) -> None:
        self._entry, self.root = entry, root
        if not root.is_dir():
            raise explain(entry, f"root={str(root)!r} is not a folder")

    def read(self, name: str) -> bytes:
        for path in self._places(name):
            if path.is_file():
                return _content(path)
        looked = ", ".join(str(path) for path in self._places(name))
        raise explain(self._entry, f"looked for {looked}; none of them is there")

    def _places(self, name: str) -> list[Path]:
        folders = [self.root, *(self.root / folder for folder in self._entry.folders)]
        return [folder / f"{name}{end}" for folder in folders for end in ("", ".gz")]


def text_of(files: Files, name: str) -> str:
    """A file as text in UTF-8, without a byte order mark."""
    try:
        return files.read(name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataNotFound(f"{name} is not text in UTF-8 ({error}): download it again.") from error


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataNotFound(f"{path} is damaged ({error}): download it again.") from error
