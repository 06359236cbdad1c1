"""What is known about a data set: its facts, its files, where they come from, how they are read.

An `Entry` is one row of `psac.app.data.catalogue`.  `files` names the files of the cache with their
SHA-256; None stands where only that of the archive around them is published, so that the archive is
checked when it is fetched, and the file from then on against what it was then.
`read(entry, files, split, **options)` makes the data set of a split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch.utils.data import Dataset

from psac.app.data.sources import Source


class DataNotFound(FileNotFoundError):
    """The data are not there, or not whole; the message says how to get them."""


class Files(Protocol):
    """The files of a data set: whole and checked from the cache, or from the user's folder."""

    @property
    def root(self) -> Path | None:
        """The user's folder, if there is one."""
        ...

    def read(self, name: str) -> bytes: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    name: str
    title: str
    licence: str
    reference: str
    page: str
    classes: tuple[str, ...]
    records: Mapping[str, int]  # by split
    megabytes: float  # of the first download that is tried, about
    files: Mapping[str, str | None]
    read: Callable[..., Dataset[Any]]
    sources: tuple[Source, ...] = ()
    folders: tuple[str, ...] = ()  # where in a user's folder the files usually are
    layout: str = ""  # what a user's folder must hold, where `files` does not say it
    options: tuple[str, ...] = ()
    test_is_public: bool = False  # whether results on the published test split may be shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Info:
    """What `psac.data.info` tells; `obtained` is how the copy in the cache came, or None."""

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
