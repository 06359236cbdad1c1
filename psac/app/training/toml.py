"""Settings as a TOML file that a person can read: flat keys, then tables.

Reading is left to `tomllib` (`tomli` before Python 3.11).  Writing is here, for strings, booleans,
numbers and lists of them.  Guarantees: what `written` writes, `read` reads back equal, in the same
order; None is left out, as TOML has no word for it.

>>> print(written({"epochs": 2.0, "seed": None, "model_settings": {"hidden": [8]}}))
epochs = 2.0
<BLANKLINE>
[model_settings]
hidden = [8]
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psac.app.data.toml import key as key_of
from psac.app.data.toml import read, string, tomllib

__all__ = ["read", "tomllib", "written"]


def written(settings: Mapping[str, Any], heading: str = "") -> str:
    """The text of a TOML file; with a heading, of one of its tables."""
    tables = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    flat = {k: v for k, v in settings.items() if k not in tables and v is not None}
    lines = "".join(f"{key_of(key)} = {_value(key, value)}\n" for key, value in flat.items())
    blocks = [f"[{heading}]\n{lines}" if heading else lines]
    for key, table in tables.items():
        blocks.append(written(table, f"{heading}.{key_of(key)}" if heading else key_of(key)))
    return "\n".join(blocks)


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return string(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(key, item) for item in value)}]"
    raise TypeError(
        f"{key} is a {type(value).__name__}, which these files do not hold: use strings, numbers, "
        "booleans and lists of them."
    )
