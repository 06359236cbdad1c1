"""The user's own data by a path.

    mine.csv, .tsv, .parquet, .npz         one table or two arrays: all of it is for training
    mine/<class>/*.png                     a folder for each class: likewise
    mine/train.csv  mine/test.csv          both splits, of any of these kinds
    mine/train/<class>/*.png  mine/test/<class>/*.png

How a kind is read is said in `psac.data`; the recipe's `data_settings` are its settings, such as
`label` for a table.  Ranges and categories that are to be released with noise cost `privacy_share`
of the recipe's budget.  Guarantees: a test record has the number of its class in the training data,
by the name of the class, and its columns, if it has any, are those of the training data by their
names; where that cannot be, and where inputs differ in shape, it is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from psac.app.data.columns import Columns
from psac.app.data.reading import table_of
from psac.app.data.released import Budget
from psac.app.data.schema import KEYS, schema_of
from psac.app.training.recipe import Recipe, did_you_mean

Split = Literal["train", "test"]
TABLES = (".csv", ".tsv", ".parquet")
ENDINGS = (*TABLES, ".npz")
SHARE = "privacy_share"


def load_own(
    recipe: Recipe,
    split: Split,
    columns: Columns | None = None,
    classes: Sequence[str] | None = None,
) -> Any:
    """The split of the data at the recipe's path.

    For a test, `columns` and `classes` are those of the training data; `columns` may also be those
    that a run began with.
    """
    path, settings = Path(recipe.data).expanduser(), recipe.data_settings
    place = _place(path, split)
    if split == "train":
        return _refuse_one_class(_read(place, settings, recipe, columns), place, settings)
    if (place.suffix in TABLES) != (columns is not None):
        raise ValueError(
            f"{place} and the training data in {_place(path, 'train')} are of two kinds: a table "
            "has names for its columns, arrays have none. Make them alike."
        )
    known = settings if columns is None else {**settings, "classes": classes}
    return _read(place, known, recipe, columns)


def _place(path: Path, split: Split) -> Path:
    """Where the split is."""
    if path.is_dir():
        found = [path / f"{split}{ending}" for ending in (*ENDINGS, "")]
        there = [place for place in found if place.exists()]
        if there:
            return there[0]
    if split == "test":
        kinds = ", ".join(f"test{ending}" for ending in ENDINGS)
        where = (
            f"{path} has no test split: that would be {path}/test, or {kinds} in it, beside one "
            "for training"
            if path.is_dir()
            else f"{path} is one file, all of it for training: it has no test split. For one, "
            f"make a folder with train{path.suffix} and test{path.suffix} in it"
        )
        raise ValueError(
            f"{where}. Or hold out a part of it for evaluation, which then stays private: "
            "validation_fraction = 0.1."
        )
    return path


def _read(place: Path, settings: Mapping[str, Any], recipe: Recipe, columns: Columns | None) -> Any:
    reader, given = _reader(place), dict(settings)
    _check_settings(place, reader, settings)
    source: Any = place
    if place.suffix in TABLES:
        given.pop(SHARE, None)
        source, given["columns"] = table_of(place), columns
        if columns is None and asks_for_noise(recipe):
            given["budget"] = _budget(recipe, source.num_records)
    try:
        return reader(source, **given)
    except TypeError as error:
        raise ValueError(
            f"{place} cannot be read with data_settings {dict(settings)}: {error}."
        ) from error


def asks_for_noise(recipe: Recipe) -> bool:
    """Whether ranges or categories are to be released with noise."""
    settings = recipe.data_settings
    return schema_of({key: settings[key] for key in KEYS if key in settings}).asks_for_noise


def _budget(recipe: Recipe, num_records: int) -> Budget:
    """The stated share of what the run may cost."""
    share = recipe.data_settings.get(SHARE)
    if share is None:
        raise ValueError(
            "a range or categories are to be released with noise, which costs privacy: say what "
            f"share of the budget, such as {SHARE} = 0.2 in data_settings."
        )
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise ValueError(f"{SHARE} is {share!r}: it must be a number above 0 and below 1.")
    if recipe.epsilon is None:
        raise ValueError(
            f"{SHARE} is a share of epsilon, but the recipe gives noise_multiplier. Give epsilon, "
            "or state ranges and categories."
        )
    delta = 1 / (10 * num_records) if recipe.delta is None else recipe.delta
    return Budget(epsilon=share * recipe.epsilon, delta=share * delta, seed=recipe.seed)


def _reader(place: Path) -> Callable[..., Any]:
    from psac.app import data

    readers = {**dict.fromkeys(TABLES, data.from_table), ".npz": data.from_npz}
    if place.is_dir():
        return data.from_folder
    if place.suffix in readers:
        return readers[place.suffix]
    raise ValueError(
        f"{place} is of no kind that can be read: give a folder of images by class, or a file "
        f"that ends in {', '.join(ENDINGS)}."
    )


def _check_settings(place: Path, reader: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    known = sorted(list(inspect.signature(reader).parameters)[1:])
    if place.suffix in TABLES:
        known = sorted([*KEYS, "schema", SHARE])
    for name in settings:
        if name not in known:
            raise ValueError(
                f"data setting '{name}' is unknown for {place}. Known: "
                f"{', '.join(known) or 'none'}.{did_you_mean(name, known)}"
            )
    if place.suffix in TABLES and "label" not in settings:
        raise ValueError(
            f"{place} is a table: give --label, or label in data_settings, the column of the "
            f"classes. It has: {', '.join(table_of(place).columns)}."
        )


def _refuse_one_class(records: Any, place: Path, settings: Mapping[str, Any]) -> Any:
    """Training records, if there is something to tell apart."""
    if len(records.classes) != 1:
        return records
    if place.is_dir():
        where = f"are in the folder '{records.classes[0]}'"
    elif place.suffix in TABLES:
        where = f"have the class '{records.classes[0]}' in the column '{settings['label']}'"
    elif records.tensors[1].ndim == 2:
        raise ValueError(
            f"{place}: y has one column, that is one class which a record has or has not. For two "
            "classes, store y[:, 0]."
        )
    else:
        where = f"have the class {records.classes[0]} in y"
    raise ValueError(f"{place}: all records {where}. There must be two classes or more to learn.")


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
