"""Your own data by path.

    mine.csv, .tsv, .parquet, .npz         one table or two arrays: all of it is for training; of a
                                           table, features or one column of text
    mine/<class>/*.png                     a folder for each class: likewise
    mine/train.csv  mine/test.csv          both splits, of any of these kinds
    mine/train/<class>/*.png  mine/test/<class>/*.png

`psac.data` has a reader for each kind; `data_settings` of the recipe are its arguments, such as
`label` for a table.  Releasing ranges and categories with noise costs `privacy_share` of the
budget.  Guarantees: test records have the classes and the columns of the training records, matched
by name; records that do not fit are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from psac.app.data.records import AnyRecords, TensorRecords
from psac.app.data.tables.columns import Columns
from psac.app.data.tables.private_release import Budget
from psac.app.data.tables.reader import table_of
from psac.app.data.tables.schema import KEYS, schema_of
from psac.app.training.recipe import Recipe
from psac.checks import number, unknown

Split = Literal["train", "test"]
TABLES = (".csv", ".tsv", ".tab", ".parquet")
ENDINGS = (*TABLES, ".npz")
SHARE = "privacy_share"


def load_own(
    recipe: Recipe,
    split: Split,
    columns: Columns | None = None,
    classes: Sequence[str] | None = None,
) -> AnyRecords:
    """The split of the data at the path of the recipe.

    For test records, `columns` and `classes` are those of the training records.  For training
    records, `columns` are those that a resumed run has already released.
    """
    path, settings = Path(recipe.data).expanduser(), recipe.data_settings
    place = _place(path, split)
    if split == "train":
        return _refuse_one_class(_read(place, settings, recipe, columns), place, settings)
    if is_table(place) != is_table(_place(path, "train")):
        raise ValueError(
            f"{place} and the training data in {_place(path, 'train')} are of different kinds: "
            "only one of them is a table. Use the same kind for both."
        )
    return _read(place, {**settings, "classes": classes}, recipe, columns)


def is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES


def _place(path: Path, split: Split) -> Path:
    """The file or folder of the split."""
    if path.is_dir():
        places = [path / f"{split}{ending}" for ending in (*ENDINGS, "")]
        if existing := [place for place in places if place.exists()]:
            return existing[0]
    if split == "test":
        kinds = ", ".join(f"test{ending}" for ending in ENDINGS)
        where = (
            f"{path} has no test split: that would be {path}/test, or {kinds} in it, beside one "
            "for training"
            if path.is_dir()
            else f"{path} is a single file, so all of it is for training. For a test split, make a "
            f"folder with train{path.suffix} and test{path.suffix} in it"
        )
        raise ValueError(
            f"{where}. Or hold out a part of the records for evaluation, which stays private: "
            "validation_fraction = 0.1."
        )
    return path


def _read(
    place: Path, settings: Mapping[str, Any], recipe: Recipe, columns: Columns | None
) -> AnyRecords:
    reader, arguments = _reader(place), dict(settings)
    _check_settings(place, reader, settings)
    source: Any = place
    if is_table(place):
        arguments.pop(SHARE, None)
        source, arguments["columns"] = table_of(place), columns
        if columns is None and asks_for_noise(recipe):
            arguments["budget"] = _budget(recipe, source.num_records)
    try:
        return reader(source, **arguments)
    except TypeError as error:
        raise ValueError(
            f"{place} cannot be read with data_settings {dict(settings)}: {error}."
        ) from error


def asks_for_noise(recipe: Recipe) -> bool:
    """Whether ranges or categories of the table are to be released with noise."""
    settings = recipe.data_settings
    return schema_of({key: settings[key] for key in KEYS if key in settings}).asks_for_noise


def _budget(recipe: Recipe, num_records: int) -> Budget:
    """The stated share of the budget of the run."""
    share = recipe.data_settings.get(SHARE)
    if share is None:
        raise ValueError(
            "releasing ranges or categories with noise costs privacy. State the share of the "
            f"budget, such as {SHARE} = 0.2 in data_settings."
        )
    if recipe.epsilon is None:
        raise ValueError(
            f"{SHARE} is a share of epsilon, but the recipe has noise_multiplier. Set epsilon "
            "instead, or state ranges and categories."
        )
    share = number(SHARE, share, "(0, 1)")
    delta = 1 / (10 * num_records) if recipe.delta is None else recipe.delta
    return Budget(epsilon=share * recipe.epsilon, delta=share * delta, seed=recipe.seed)


def _reader(place: Path) -> Callable[..., AnyRecords]:
    from psac.app import data

    readers = {**dict.fromkeys(TABLES, data.from_table), ".npz": data.from_npz}
    if place.is_dir():
        return data.from_folder
    if (ending := place.suffix.lower()) in readers:
        return readers[ending]
    raise ValueError(
        f"{place} cannot be read. Pass a folder of images by class, or a file that ends in "
        f"{', '.join(ENDINGS)}."
    )


def _check_settings(place: Path, reader: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    known = sorted(list(inspect.signature(reader).parameters)[1:])
    if is_table(place):
        known = sorted([*KEYS, "schema", SHARE])
    for name in settings:
        if name not in known:
            raise ValueError(f"{place}: {unknown('data setting', name, known)}")
    if is_table(place) and "label" not in settings:
        raise ValueError(
            f"{place} is a table: state the column of its classes by --label, or label in "
            f"data_settings. Its columns: {', '.join(table_of(place).columns)}."
        )


def _refuse_one_class(records: AnyRecords, place: Path, settings: Mapping[str, Any]) -> AnyRecords:
    """The records; raises if there is only one class."""
    if len(records.classes) != 1:
        return records
    if place.is_dir():
        where = f"are in the folder '{records.classes[0]}'"
    elif is_table(place):
        where = f"have the class '{records.classes[0]}' in the column '{settings['label']}'"
    elif isinstance(records, TensorRecords) and records.tensors[1].ndim == 2:
        raise ValueError(
            f"{place}: y has one column, so a record has its class or not. For two classes, store "
            "y[:, 0]."
        )
    else:
        where = f"have the class {records.classes[0]} in y"
    raise ValueError(f"{place}: all records {where}. Training needs two classes or more.")
