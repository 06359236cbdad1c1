"""The data sets by name.  To add one: a file in sets/ with its `Entry`, and a line here.

`load` reads a split from the cache, fetching it first if needed (`psac.app.data.store`).  With
`root`, it reads your own copy of the files and nothing else.

>>> names()[:3]
['fashion-mnist', 'mnist', 'cifar10']
>>> info("fashion-mnist").records["train"]
60000
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, overload

from psac.app.data import store
from psac.app.data.entry import Entry, Info
from psac.app.data.files import CachedFiles, FolderFiles
from psac.app.data.records import ImageFiles, TensorRecords, TextRecords
from psac.app.data.sets.adult import ADULT
from psac.app.data.sets.celeba import CELEBA
from psac.app.data.sets.cifar import CIFAR10
from psac.app.data.sets.digits import DIGITS
from psac.app.data.sets.features import CIFAR10_FEATURES
from psac.app.data.sets.glue import COLA, MNLI, MRPC, QNLI, QQP, RTE, SST2
from psac.app.data.sets.imagenette import IMAGENETTE
from psac.app.data.sets.mnist import FASHION_MNIST, MNIST
from psac.app.data.sets.reviews import MOVIE_REVIEWS
from psac.app.data.sources import Progress
from psac.checks import unknown

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        FASHION_MNIST,
        MNIST,
        CIFAR10,
        CIFAR10_FEATURES,
        IMAGENETTE,
        CELEBA,
        SST2,
        QNLI,
        QQP,
        MNLI,
        COLA,
        MRPC,
        RTE,
        MOVIE_REVIEWS,
        ADULT,
        DIGITS,
    )
}


def names() -> list[str]:
    """The names of all data sets."""
    return list(ENTRIES)


def info(name: str) -> Info:
    """The facts about a data set, and where the copy in the cache came from."""
    entry = _entry(name)
    return Info(
        name=entry.name,
        title=entry.title,
        licence=entry.licence,
        reference=entry.reference,
        page=entry.page,
        classes=entry.classes,
        records=entry.records,
        megabytes=entry.megabytes,
        sources=tuple(str(source) for source in entry.sources),
        obtained=store.obtained(entry),
    )


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Fetches a data set if it is not in the cache, and returns its folder.

    `progress(what, bytes_done, bytes_total)` is called meanwhile; bytes_total may be None.
    """
    return store.fetch(_entry(name), progress)


# For type checkers: the kind of records of each data set.
TensorName = Literal["fashion-mnist", "mnist", "cifar10", "cifar10-features", "adult", "digits"]
ImageName = Literal["imagenette", "celeba"]
TextName = Literal["sst2", "qnli", "qqp", "mnli", "cola", "mrpc", "rte", "movie-reviews"]


@overload
def load(name: TensorName, split: str = ..., **settings: Any) -> TensorRecords: ...
@overload
def load(name: ImageName, split: str = ..., **settings: Any) -> ImageFiles: ...
@overload
def load(name: TextName, split: str = ..., **settings: Any) -> TextRecords: ...
@overload
def load(name: str, split: str = ..., **settings: Any) -> Any: ...
def load(
    name: str,
    split: str = "train",
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> Any:
    """A split of a data set: `TensorRecords`, `ImageFiles` or `TextRecords`.

    Args:
        name: One of `names()`.
        split: "train" or "test"; some data sets have more.
        root: A folder with your own copy of the official files.
        download: Whether files may be fetched.
        progress: Called with (what, bytes done, bytes in total) while files are fetched.
        options: `size` for imagenette and celeba, `attribute` for celeba, `attributes` for cifar10.
    """
    entry = _entry(name)
    if split not in entry.records:
        raise ValueError(f"{name} has no split {split!r}. Its splits: {', '.join(entry.records)}.")
    if unknown := sorted(options.keys() - set(entry.options)):
        known = ", ".join(entry.options) or "none"
        raise TypeError(f"{name} does not take {', '.join(unknown)}. Its options: {known}.")
    if root is not None:
        return entry.read(entry, FolderFiles(entry, Path(root).expanduser()), split, **options)
    files = CachedFiles(entry, download=download, progress=progress)
    return entry.read(entry, files, split, **options)


def _entry(name: str) -> Entry:
    if name in ENTRIES:
        return ENTRIES[name]
    raise ValueError(unknown("data set", name, ENTRIES))
