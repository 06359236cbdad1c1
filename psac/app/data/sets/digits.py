"""Digits: 1,797 handwritten digits of 8 x 8 pixels, the file that scikit-learn carries.

Its pixels go from 0 to 16.  There is no official split: see `psac.app.data.sets.hashed_split`.
"""

from __future__ import annotations

import numpy as np
import torch

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.images import scaled
from psac.app.data.records import TensorRecords
from psac.app.data.sets.hashed_split import in_split
from psac.app.data.sources import Installed, Package

FILE = "digits.csv"


def read(entry: Entry, files: Files, split: str) -> TensorRecords:
    lines = [line for line in files.read(FILE).split() if in_split(line, split)]
    try:
        rows = np.array([line.split(b",") for line in lines], np.float64).reshape(len(lines), 65)
    except ValueError as error:
        raise DataNotFound(f"{FILE} must have 65 numbers in each line ({error}).") from error
    inputs = scaled(rows[:, :64].reshape(-1, 1, 8, 8), 16)
    labels = torch.from_numpy(rows[:, 64].astype(np.int64))
    return TensorRecords(inputs, labels, name=entry.name, classes=entry.classes)


DIGITS = Entry(
    name="digits",
    title="Digits: handwritten digits, 8 x 8, grey",
    licence="CC BY 4.0",
    reference="Alpaydin, Kaynak 1998, UCI Machine Learning Repository, doi:10.24432/C50P49",
    page="https://scikit-learn.org/stable/datasets/toy_dataset.html",
    classes=tuple("0123456789"),
    records={"train": 1_434, "test": 363},
    megabytes=0,
    files={FILE: "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"},
    read=read,
    sources=(
        Installed(module="sklearn", members={FILE: f"datasets/data/{FILE}.gz"}),
        Package(
            client="pip",
            package="scikit-learn",
            members={FILE: f"sklearn/datasets/data/{FILE}.gz"},
        ),
    ),
    test_is_public=True,
)
