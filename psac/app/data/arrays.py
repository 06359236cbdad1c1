"""The user's own arrays: an .npz file with x, the inputs, and y, the labels.

x becomes float32; bytes (uint8) are taken for pixels and scaled to [0, 1].  The axes stay as
they are, and the first one counts the records: store images as records x channels x height x width.
Whole numbers in y are classes, from 0; other numbers stay what they are, as float32.  Where y has a
row for each record, of 0 and 1 alone, a record may belong to several classes, one for each column.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from psac.app.data.entry import DataNotFound
from psac.app.data.images import scaled
from psac.app.data.records import TensorRecords


def from_npz(path: str | os.PathLike[str]) -> TensorRecords:
    """Records of the arrays x and y.  Nothing in the file is executed."""
    file = Path(path).expanduser()
    x, y = _arrays(file, "x", "y")
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) == 0:
        raise ValueError(
            f"{file}: x has the shape {x.shape} and y {y.shape}. Both need one entry per record, "
            "and at least one."
        )
    inputs = _inputs(x, file)
    _refuse_infinite(y, file)
    if y.ndim == 2 and np.isin(y, (0, 1)).all():
        labels = torch.from_numpy(y.astype(np.float32))
        classes = [str(number) for number in range(y.shape[1])]
    elif y.dtype.kind == "f":
        labels, classes = torch.from_numpy(y.astype(np.float32)), ()
    else:
        labels = torch.from_numpy(y.astype(np.int64))
        if int(labels.min()) < 0:
            raise ValueError(f"{file}: y has the class {int(labels.min())}. Count classes from 0.")
        classes = [str(number) for number in range(int(labels.max()) + 1)]
    return TensorRecords(inputs, labels, name=file.stem, classes=classes)


def inputs_from_npz(path: str | os.PathLike[str]) -> Tensor:
    """The array x alone, for records without labels."""
    file = Path(path).expanduser()
    (x,) = _arrays(file, "x")
    if x.ndim == 0 or len(x) == 0:
        raise ValueError(f"{file}: x has the shape {x.shape}. It needs one entry per record.")
    return _inputs(x, file)


def _inputs(x: np.ndarray, file: Path) -> Tensor:
    _refuse_infinite(x, file)
    return scaled(x) if x.dtype == np.uint8 else torch.from_numpy(x.astype(np.float32))


def _refuse_infinite(array: np.ndarray, file: Path) -> None:
    if not np.isfinite(array).all():
        raise ValueError(f"{file}: there are numbers that are not finite. Fill in or drop them.")


def _arrays(file: Path, *wanted: str) -> list[np.ndarray]:
    if not file.is_file():
        raise DataNotFound(f"there is no file {file}.")
    try:
        with open(file, "rb") as content:
            arrays = np.load(content, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise ValueError("it is a single array")
            if missing := set(wanted) - set(arrays.files):
                held = ", ".join(arrays.files) or "nothing"
                raise ValueError(f"it has no array {', '.join(sorted(missing))}, but {held}")
            found = [arrays[name] for name in wanted]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise DataNotFound(
            f"{file} cannot be used: {error}. Write it with numpy.savez({str(file)!r}, x=inputs, "
            "y=labels), of numbers."
        ) from error
    for name, array in zip(wanted, found, strict=True):
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{file}: {name} is of type {array.dtype}. Store numbers.")
    return found
