"""TOML that a person can read: flat keys, then tables.

Reading is left to `tomllib` (`tomli` before Python 3.11).  Writing knows strings, booleans, numbers
and lists of them.  Guarantees: `read` gives back what `written` wrote, equal and in the same order;
None is left out, because TOML has no word for it.

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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]


def read(path: Path) -> dict[str, Any]:
    """The content of the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from error


def quoted_key(name: str) -> str:
    """The name as a TOML key, in quotes where it needs them.

    >>> quoted_key("age"), quoted_key("body mass")
    ('age', '"body mass"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else string(name)


def string(text: str) -> str:
    # TOML escapes as JSON does, save that it also escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def strings(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(string, texts))}]"


def written(settings: Mapping[str, Any], heading: str = "") -> str:
    """The settings as TOML; with a heading, as one of its tables."""
    tables = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    flat = {k: v for k, v in settings.items() if k not in tables and v is not None}
    lines = "".join(f"{quoted_key(key)} = {_value(key, value)}\n" for key, value in flat.items())
    blocks = [f"[{heading}]\n{lines}" if heading else lines]
    for key, table in tables.items():
        blocks.append(
            written(table, f"{heading}.{quoted_key(key)}" if heading else quoted_key(key))
        )
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
        f"{key} is a {type(value).__name__}, which psac cannot write as TOML: use strings, "
        "numbers, booleans and lists of them."
    )
