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

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]


def read(path: Path) -> dict[str, Any]:
    """The settings in the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML file: {error}.") from error


def written(settings: Mapping[str, Any], heading: str = "") -> str:
    """The text of a TOML file; with a heading, of one of its tables."""
    tables = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    flat = {k: v for k, v in settings.items() if k not in tables and v is not None}
    lines = "".join(f"{_key(key)} = {_value(key, value)}\n" for key, value in flat.items())
    blocks = [f"[{heading}]\n{lines}" if heading else lines]
    for key, table in tables.items():
        blocks.append(written(table, f"{heading}.{_key(key)}" if heading else _key(key)))
    return "\n".join(blocks)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(key, item) for item in value)}]"
    raise TypeError(
        f"{key} is a {type(value).__name__}, which these files do not hold: use strings, numbers, "
        "booleans and lists of them."
    )


def _string(text: str) -> str:
    # TOML escapes as JSON does, save that it also escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
