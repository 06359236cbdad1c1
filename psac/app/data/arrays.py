"""Your own arrays: an .npz file with x, the inputs, and y, the labels.

x becomes float32; bytes (uint8) are taken for pixels and scaled to [0, 1].  The axes stay as they
are, and the first one counts the records: store images as records x channels x height x width.

    y                                     labels
    whole numbers                         one class per record, counted from 0; `classes` names them
    a row of 0 and 1 for each record      several classes per record, one for each column
    other numbers                         kept as float32
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from psac.app.data.classes import Classes, checked_classes, classes_of
from psac.app.data.entry import DataNotFound
from psac.app.data.images import scaled
from psac.app.data.records import TensorRecords

MANY = 1000  # classes


def from_npz(
    path: str | os.PathLike[str],
    *,
    classes: Sequence[object] | None = None,
    unsafe: bool = False,
) -> TensorRecords:
    """Records of the arrays x and y.  Nothing in the file is executed.

    `classes` are the names of the classes, in the order of the labels.  They must be stated, as the
    largest label depends on the records; `unsafe` allows reading it off them without noise.
    """
    file = Path(path).expanduser()
    x, y = _arrays(file, "x", "y")
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) == 0:
        raise ValueError(
            f"{file}: x has the shape {x.shape} and y {y.shape}. Both need one entry per record, "
            "and at least one."
        )
    inputs = _inputs(x, file)
    _refuse_infinite(y, file)
    labels, known = _labels(file, y, classes, unsafe)
    return TensorRecords(
        inputs,
        labels,
        name=file.stem,
        classes=known.names,
        unsafe=known.unsafe,
        released=known.ledger,
    )


def _labels(
    file: Path, y: np.ndarray, stated: Sequence[object] | None, unsafe: bool
) -> tuple[Tensor, Classes]:
    if y.ndim == 2 and np.isin(y, (0, 1)).all():
        names = checked_classes(list(range(y.shape[1])) if stated is None else stated)
        if len(names) != y.shape[1]:
            raise ValueError(
                f"{file}: y has {y.shape[1]} columns, but {len(names)} classes are stated. Name "
                "one class for each column."
            )
        return torch.from_numpy(y.astype(np.float32)), Classes(names)
    if y.dtype.kind == "f":
        return torch.from_numpy(y.astype(np.float32)), Classes(())
    labels = torch.from_numpy(y.astype(np.int64))
    least, largest = int(labels.min()), int(labels.max())
    if least < 0:
        raise ValueError(f"{file}: y has the class {least}. Count classes from 0.")
    if stated is None and largest >= max(len(y), MANY):
        raise ValueError(
            f"{file}: y has the class {largest}, but only {len(y)} records. Labels count the "
            "classes from 0. If they do, pass classes."
        )
    known = classes_of(file, "array y", stated, [str(k) for k in range(largest + 1)], unsafe)
    if largest >= len(known.names):
        raise ValueError(
            f"{file}: y has the class {largest}, but only {len(known.names)} classes are stated: "
            f"{', '.join(known.names)}. Labels count the classes from 0."
        )
    return labels, known


def inputs_from_npz(path: str | os.PathLike[str]) -> Tensor:
    """The array x, for records without labels."""
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
        raise ValueError(
            f"{file}: some numbers are not finite. Fill them in, or drop their records."
        )


def _arrays(file: Path, *wanted: str) -> list[np.ndarray]:
    if not file.is_file():
        raise DataNotFound(f"{file} does not exist.")
    try:
        with open(file, "rb") as content:
            arrays = np.load(content, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise ValueError("it is a single array")
            if missing := set(wanted) - set(arrays.files):
                held = ", ".join(arrays.files) or "nothing"
                raise ValueError(f"it has no array {', '.join(sorted(missing))}, but {held}")
            contents = [arrays[name] for name in wanted]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise DataNotFound(
            f"{file} cannot be used: {error}. Write it with numpy.savez({str(file)!r}, x=inputs, "
            "y=labels), of numbers."
        ) from error
    for name, array in zip(wanted, contents, strict=True):
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{file}: {name} is of type {array.dtype}. Store numbers.")
    return contents
