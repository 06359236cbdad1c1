"""Your own images: a folder for each class, with the images of that class in it.

    faces/happy/1.png  faces/happy/2.jpg  faces/sad/1.png        ->  classes ("happy", "sad")

Images are recognised by the ends of their names, at any depth below the folder of a class; other
files and hidden ones are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from psac.app.data.classes import classes_of
from psac.app.data.entry import DataNotFound
from psac.app.data.images import MODES, checked_size
from psac.app.data.records import ImageFiles

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def from_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    channels: int = 3,
    classes: Sequence[object] | None = None,
    unsafe: bool = False,
) -> ImageFiles:
    """Images by class, decoded when they are needed; `size` makes them squares of one size.

    `classes` are the names of the folders, in the order of the labels.  They must be stated, as
    which folders there are may depend on the records; `unsafe` takes those that are there.
    """
    folder = Path(path).expanduser()
    checked_size(size)
    if channels not in MODES:
        raise ValueError(f"channels is {channels!r}: pass 3 for RGB or 1 for grey.")
    if not folder.is_dir():
        raise DataNotFound(
            f"{folder} is not a folder. Pass one that holds a folder for each class."
        )
    images = {
        inner.name: images_in(inner) for inner in sorted(folder.iterdir()) if _is_class(inner)
    }
    if not images or not all(images.values()):
        empty = next((folder / name for name, paths in images.items() if not paths), None)
        raise DataNotFound(
            f"looked for images ({' '.join(ENDINGS)}) in {empty or f'{folder}/<class>/'} and found "
            "none. Put the images of each class into a folder of its own, and remove empty folders."
        )
    known = classes_of(folder, "names of folders", classes, list(images), unsafe)
    if others := [name for name in images if name not in known.names]:
        raise ValueError(
            f"{folder} has the folder '{others[0]}', which is not one of the classes: "
            f"{', '.join(known.names)}."
        )
    numbers = {name: number for number, name in enumerate(known.names)}
    return ImageFiles(
        [path for paths in images.values() for path in paths],
        torch.tensor([numbers[name] for name, paths in images.items() for _ in paths]),
        name=folder.name,
        classes=known.names,
        size=size,
        channels=channels,
        unsafe=known.unsafe,
        released=known.ledger,
    )


def images_in(folder: Path) -> list[Path]:
    """All images at any depth, in the order of their names."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
    return sorted(path for path in paths if _is_shown(path) and path.is_file())


def _is_class(path: Path) -> bool:
    return path.is_dir() and _is_shown(path)


def _is_shown(path: Path) -> bool:
    return not path.name.startswith(".")
