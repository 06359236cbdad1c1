"""Imagenette: ten classes of ImageNet that are easy to tell apart, in the version of 160 pixels.

The cache keeps the official archive, from which images are read; your own folder holds them
unpacked, as train/<class>/*.JPEG and val/<class>/*.JPEG.  "test" is what the archive calls val.
`size` is the side of the images, 160 by default (see `psac.app.data.records.ImageFiles`).
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import torch

from psac.app.data.entry import Entry, Files
from psac.app.data.images import checked_size
from psac.app.data.records import ImageFiles
from psac.app.data.sources import Web
from psac.app.data.store import explain

ARCHIVE = "imagenette2-160.tgz"
PARTS = {"train": "train", "test": "val"}
# In the order of the names of their folders.
CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


def read(entry: Entry, files: Files, split: str, *, size: int | None = 160) -> ImageFiles:
    checked_size(size)
    images: list[tuple[str, Path | tuple[str, bytes]]]
    if files.root is None:
        images = in_archive(files.read(ARCHIVE), PARTS[split])
    else:
        images = in_folder(entry, files.root, PARTS[split])
    numbers = {folder: number for number, folder in enumerate(CLASSES)}
    labels = torch.tensor([numbers[folder] for folder, _ in images])
    contents = [content for _, content in images]
    return ImageFiles(contents, labels, name=entry.name, classes=entry.classes, size=size)


def in_archive(archive: bytes, part: str) -> list[tuple[str, Path | tuple[str, bytes]]]:
    """(class, (name, content)) of each image, by name."""
    images = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = Path(member.name)
            if _is_image(path) and path.parts[-3] == part:
                content = tar.extractfile(member)
                assert content is not None  # a file, which the archive that was checked holds
                images[member.name] = (path.parts[-2], (path.name, content.read()))
    return [images[name] for name in sorted(images)]


def in_folder(entry: Entry, root: Path, part: str) -> list[tuple[str, Path | tuple[str, bytes]]]:
    """(class, path) of each image, by name."""
    for folder in (root, *(root / inner for inner in entry.folders)):
        paths = sorted(path for path in (folder / part).glob("*/*") if _is_image(path))
        if paths:
            return [(path.parent.name, path) for path in paths]
    raise explain(entry, f"looked for {root / part}/<class>/*.JPEG; no such image exists")


def _is_image(path: Path) -> bool:
    known = len(path.parts) > 2 and path.parts[-2] in CLASSES
    return known and path.suffix.lower() in (".jpeg", ".jpg", ".png")


IMAGENETTE = Entry(
    name="imagenette",
    title="Imagenette: ten classes of ImageNet, 160 pixels, colour",
    licence="Apache 2.0 (the selection); images by ImageNet, for research",
    reference="Howard 2019, https://github.com/fastai/imagenette",
    page="https://github.com/fastai/imagenette",
    classes=tuple(CLASSES.values()),
    records={"train": 9_469, "test": 3_925},
    megabytes=99,
    files={ARCHIVE: "64d0c4859f35a461889e0147755a999a48b49bf38a7e0f9bd27003f10db02fe5"},
    read=read,
    sources=(Web({ARCHIVE: f"https://s3.amazonaws.com/fast-ai-imageclas/{ARCHIVE}"}),),
    folders=("imagenette2-160", "imagenette2-320", "imagenette2"),
    layout="train/<class>/*.JPEG and val/<class>/*.JPEG, where <class> is n01440764 and so on",
    options=("size",),
    test_is_public=True,
)
