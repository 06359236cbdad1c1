"""Small files in the layouts of the real ones."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def idx(array: np.ndarray) -> bytes:
    axes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + axes + array.astype(np.uint8).tobytes()


def mnist_files(train: int = 6, test: int = 4) -> dict[str, bytes]:
    random = np.random.default_rng(0)
    files = {}
    for part, count in (("train", train), ("t10k", test)):
        files[f"{part}-images-idx3-ubyte"] = idx(random.integers(0, 256, (count, 28, 28)))
        files[f"{part}-labels-idx1-ubyte"] = idx(np.arange(count) % 10)
    return files


def tgz(files: Mapping[str, bytes]) -> bytes:
    return _tar(files, "w:gz")


def zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def deb(files: Mapping[str, bytes]) -> bytes:
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": b"odd",
        "data.tar.xz": _tar({f"./{name}": content for name, content in files.items()}, "w:xz"),
    }
    package = b"!<arch>\n"
    for name, content in members.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        package += header.encode() + content + b"\n" * (len(content) % 2)
    return package


def _tar(files: Mapping[str, bytes], mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def image(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def plain_image(value: int = 0, width: int = 8, height: int = 8, kind: str = "PNG") -> bytes:
    return image(np.full((height, width, 3), value), kind)


def write(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder
