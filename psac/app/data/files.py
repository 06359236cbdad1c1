"""The files that a data set is read from: in the cache, or in your own folder.

In the cache, every file is checked by SHA-256 and fetched if needed (`psac.app.data.store`).  In
your own folder, nothing is fetched, changed or checked, as it may hold another version.  Files are
also found there with `.gz` at the end of their names, and in the subfolders that other libraries
and the official archives use.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.sources import Progress
from psac.app.data.store import cache_folder, explain, fetch, stored


class CachedFiles:
    """The files in the cache; missing ones are fetched if `download` is true."""

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
            state = "is damaged (wrong SHA-256)" if place.exists() else "does not exist"
            raise explain(self._entry, f"{place} {state}")
        return content


class FolderFiles:
    """The files in your own folder."""

    def __init__(self, entry: Entry, root: Path) -> None:
        self._entry, self.root = entry, root
        if not root.is_dir():
            raise explain(entry, f"root={str(root)!r} is not a folder")

    def read(self, name: str) -> bytes:
        for path in self._places(name):
            if path.is_file():
                return _content(path)
        places = ", ".join(str(path) for path in self._places(name))
        raise explain(self._entry, f"looked for {places}, but none of them exists")

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
