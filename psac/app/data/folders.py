"""The user's own pictures: a folder for each class, with the images of that class in it.

    faces/happy/1.png  faces/happy/2.jpg  faces/sad/1.png        ->  classes ("happy", "sad")

Classes are in the order of their names.  Images are found at any depth below a class's folder, by
the ends of their names; other files and hidden ones are passed over.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from psac.app.data.entry import DataNotFound
from psac.app.data.images import MODES, checked_size
from psac.app.data.records import ImageFiles

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def from_folder(
    path: str | os.PathLike[str], *, size: int | None = None, channels: int = 3
) -> ImageFiles:
    """Images by class, decoded when asked for; `size` makes them squares of one size."""
    folder = Path(path).expanduser()
    checked_size(size)
    if channels not in MODES:
        raise ValueError(f"channels is {channels!r}: pass 3 for RGB or 1 for grey.")
    if not folder.is_dir():
        raise DataNotFound(
            f"{folder} is not a folder. Pass one that holds a folder for each class."
        )
    classes = sorted(inner for inner in folder.iterdir() if inner.is_dir() and _is_shown(inner))
    images = [images_in(inner) for inner in classes]
    if not classes or not all(images):
        empty = next(
            (inner for inner, found in zip(classes, images, strict=True) if not found), None
        )
        raise DataNotFound(
            f"looked for images ({' '.join(ENDINGS)}) in {empty or f'{folder}/<class>/'} and found "
            "none. Put those of each class into a folder of its own, and remove empty folders."
        )
    labels = [number for number, found in enumerate(images) for _ in found]
    return ImageFiles(
        [image for found in images for image in found],
        torch.tensor(labels),
        name=folder.name,
        classes=[inner.name for inner in classes],
        size=size,
        channels=channels,
    )


def images_in(folder: Path) -> list[Path]:
    """Those at any depth, in the order of their names."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
    return sorted(path for path in found if _is_shown(path) and path.is_file())


def _is_shown(path: Path) -> bool:
    return not path.name.startswith(".")
