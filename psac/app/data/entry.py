"""The facts about a data set: its files, their sources, how they are read.

An `Entry` is one row of `psac.app.data.catalogue`.  Pretrained weights are `Stored` in the same
cache (`psac.app.text.pretrained`).  `files` are those of the cache, with their SHA-256.  None
means that only the SHA-256 of the archive is published: then the archive is checked when it is
fetched, and the file is compared with its first version from then on.
`read(entry, files, split, **options)` makes the records of a split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch.utils.data import Dataset

from psac.app.data.sources import Source


class DataNotFound(FileNotFoundError):
    """The data are missing or incomplete; the message says how to get them."""


class Files(Protocol):
    """The files of a data set, from the cache or from your own folder."""

    @property
    def root(self) -> Path | None:
        """Your own folder, if there is one."""
        ...

    def read(self, name: str) -> bytes: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """Files that the cache holds."""

    name: str
    title: str
    licence: str
    reference: str
    page: str
    megabytes: float  # of the download, roughly
    files: Mapping[str, str | None]
    sources: tuple[Source, ...] = ()
    layout: str = ""  # what your own folder must hold, if `files` does not say it
    own_folder: str = "root=FOLDER"  # how your own folder is passed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry(Stored):
    classes: tuple[str, ...]
    records: Mapping[str, int]  # by split
    read: Callable[..., Dataset[Any]]
    folders: tuple[str, ...] = ()  # subfolders in which other libraries put the files
    options: tuple[str, ...] = ()
    test_is_public: bool = False  # whether results on the test split may be published


@dataclasses.dataclass(frozen=True, kw_only=True)
class Info:
    """The facts about a data set; `obtained` is the source of the copy in the cache, or None."""

    name: str
    title: str
    licence: str
    reference: str
    page: str
    classes: tuple[str, ...]
    records: Mapping[str, int]
    megabytes: float
    sources: tuple[str, ...]
    obtained: str | None
