"""The columns of a table by their names: what a feature is does not depend on where it stands.

A column is a number or one of several categories; the kinds by their names, in the order of the
features, are kept with the records and with a trained model.  Guarantees: a table whose columns are
others, one more or one less, is refused with their names; those of the same names are put in the
order of the features.

>>> in_order({"b": [1], "a": [2]}, {"a": NUMBER, "b": NUMBER}, "new.csv")
{'a': [2], 'b': [1]}
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

NUMBER, CATEGORIES = "number", "categories"
Columns = Mapping[str, str]  # kind, by name


def in_order(
    found: Mapping[str, list[Any]], expected: Columns, file: str | os.PathLike[str]
) -> dict[str, list[Any]]:
    """The columns that were found, in the order of those that are expected."""
    mapping = isinstance(expected, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not mapping or set(expected.values()) - {NUMBER, CATEGORIES}:
        raise ValueError(
            f"columns is {expected!r}: give those of other records, such as train.columns, that is "
            f"'{NUMBER}' or '{CATEGORIES}' for each name."
        )
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    if missing or extra:
        parts = [f"{_quoted(missing)} missing"] if missing else []
        parts += [f"{_quoted(extra)} unknown"] if extra else []
        raise ValueError(
            f"{file} does not have the columns of the training data: {', '.join(parts)}. Expected, "
            f"in any order: {', '.join(expected)}."
        )
    return {name: found[name] for name in expected}


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
