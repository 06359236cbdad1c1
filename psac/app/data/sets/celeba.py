"""CelebA: 202,599 faces of celebrities with 40 attributes each, read from your own folder.

It is available for non-commercial research through a form on its page, so psac cannot fetch it.
`attribute="Smiling"` gives two classes; None, the default, gives all 40 attributes as float32, 0 or
1.  The splits are the official ones: "train", "validation", "test".  `size` is the side of the
images, 64 by default: the middle of the aligned images, which have 178 x 218 pixels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.files import text_of
from psac.app.data.images import checked_size
from psac.app.data.records import ImageFiles
from psac.app.data.store import explain
from psac.checks import unknown

PARTS = {"train": "0", "validation": "1", "test": "2"}
IMAGES, ATTRIBUTES, PARTITION = (
    "img_align_celeba",
    "list_attr_celeba.txt",
    "list_eval_partition.txt",
)
_NAMES = """
5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose
Black_Hair Blond_Hair Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee
Gray_Hair Heavy_Makeup High_Cheekbones Male Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard
Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks Sideburns Smiling Straight_Hair
Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace Wearing_Necktie Young
"""
CLASSES = tuple(_NAMES.split())


def read(
    entry: Entry,
    files: Files,
    split: str,
    *,
    attribute: str | None = None,
    size: int | None = 64,
) -> ImageFiles:
    checked_size(size)
    if attribute is not None and attribute not in CLASSES:
        raise ValueError(unknown("attribute", attribute, CLASSES))
    if files.root is None:
        raise explain(entry, "it cannot be fetched automatically")
    names, values_na = attributes_in(text_of(files, ATTRIBUTES))
    parts = parts_in(text_of(files, PARTITION))
    rows = [place for place, name in enumerate(names) if parts.get(name) == PARTS[split]]
    folder = images_folder(entry, files.root)
    labels, classes = torch.from_numpy(values_na[rows]), CLASSES
    if attribute is not None:
        labels = labels[:, CLASSES.index(attribute)].long()
        classes = (f"not {attribute}", attribute)
    paths = [folder / names[place] for place in rows]
    return ImageFiles(paths, labels, name=entry.name, classes=classes, size=size)


def images_folder(entry: Entry, root: Path) -> Path:
    for folder in (root, *(root / inner for inner in entry.folders)):
        if (folder / IMAGES).is_dir():
            return folder / IMAGES
    raise explain(entry, f"looked for the folder {root / IMAGES}, which does not exist")


def attributes_in(text: str) -> tuple[list[str], np.ndarray]:
    """The names of the images and their attributes, 0 or 1: a count, the header, the rows."""
    lines = text.splitlines()
    rows = [line.split(maxsplit=1) for line in lines[2:] if line.strip()]
    if not rows or tuple(lines[1].split()) != CLASSES:
        raise DataNotFound(
            f"{ATTRIBUTES} must have a count in its first line, the 40 attributes in its second, "
            "and then the images: download it again."
        )
    try:
        values = np.loadtxt([row[-1] for row in rows], np.int8, ndmin=2)
    except ValueError as error:
        raise DataNotFound(f"{ATTRIBUTES} is damaged ({error}): download it again.") from error
    if values.shape != (len(rows), 40) or (np.abs(values) != 1).any():
        raise DataNotFound(
            f"{ATTRIBUTES} must have 40 values of 1 or -1 for each image: download it again."
        )
    return [row[0] for row in rows], (values > 0).astype(np.float32)


def parts_in(text: str) -> dict[str, str]:
    """The number of the split of each image."""
    rows = [line.split() for line in text.splitlines() if line]
    if wrong := [row for row in rows if len(row) != 2 or row[1] not in PARTS.values()]:
        raise DataNotFound(
            f"{PARTITION} must have an image and 0, 1 or 2 in each line, unlike {wrong[0]}. "
            "Download it again."
        )
    return dict(rows)


CELEBA = Entry(
    name="celeba",
    title="CelebA: faces with 40 attributes, 178 x 218, colour",
    licence="non-commercial research only",
    reference="Liu, Luo, Wang, Tang 2015, arXiv:1411.7766",
    page="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    classes=CLASSES,
    records={"train": 162_770, "validation": 19_867, "test": 19_962},
    megabytes=1_400,
    files={},
    read=read,
    folders=("celeba",),
    layout=f"{IMAGES}/*.jpg, {ATTRIBUTES} and {PARTITION}",
    options=("attribute", "size"),
    test_is_public=True,
)
