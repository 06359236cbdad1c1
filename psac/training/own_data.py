"""The user's own data by a path.

    mine.csv, mine.parquet, mine.npz       one table or two arrays: all of it is for training
    mine/<class>/*.png                     a folder for each class: likewise
    mine/train.csv  mine/test.csv          both splits, of any of these kinds
    mine/train/<class>/*.png  mine/test/<class>/*.png

How a kind is read is said in `psac.data`; the recipe's `data_settings` are its settings, such as
`label` for a table.  Guarantees: a test record has the number of its class in the training data,
by the name of the class; where that cannot be, and where inputs differ in shape, it is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from psac.accounting import PrivacyWarning

Split = Literal["train", "test"]
ENDINGS = (".csv", ".parquet", ".npz")


def load_own(path: Path, split: Split, settings: Mapping[str, Any]) -> Any:
    """The split of the data at this path."""
    place = _place(path, split)
    if split == "train" or place.suffix not in (".csv", ".parquet"):
        return _read(place, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        try:
            return _read(place, settings)
        except PrivacyWarning as warning:
            raise ValueError(
                f"{warning} Those of the test records would be others than in training."
            ) from warning


def _place(path: Path, split: Split) -> Path:
    """Where the split is."""
    if path.is_dir():
        found = [path / f"{split}{ending}" for ending in (*ENDINGS, "")]
        there = [place for place in found if place.exists()]
        if there:
            return there[0]
    if split == "test":
        raise ValueError(
            f"{path} has no test split: that would be {path}/test, or test{', test'.join(ENDINGS)} "
            "in it, beside one for training. Or hold out a part of it for evaluation, which then "
            "stays private: validation_fraction = 0.1."
        )
    return path


def _read(place: Path, settings: Mapping[str, Any]) -> Any:
    from psac import data

    readers = {".csv": data.from_csv, ".parquet": data.from_parquet, ".npz": data.from_npz}
    if place.is_dir():
        reader = data.from_folder
    elif place.suffix in readers:
        reader = readers[place.suffix]
    else:
        raise ValueError(
            f"{place} is of no kind that can be read: give a folder of images by class, or a file "
            f"that ends in {', '.join(ENDINGS)}."
        )
    try:
        return reader(place, **settings)
    except TypeError as error:
        raise ValueError(
            f"{place} cannot be read with data_settings {dict(settings)}: {error}."
        ) from error


def renumbered(labels: Tensor, theirs: tuple[str, ...], own: tuple[str, ...], name: str) -> Tensor:
    """Labels that count the classes `theirs`, as labels that count `own`."""
    if theirs == own:
        return labels
    unknown = [theirs[k] for k in labels.unique().tolist() if theirs[k] not in own]
    if unknown:
        raise ValueError(
            f"data '{name}': the test records have the class '{unknown[0]}', the training records "
            f"only {', '.join(own)}."
        )
    numbers = [own.index(label) if label in own else -1 for label in theirs]
    return torch.tensor(numbers)[labels]
