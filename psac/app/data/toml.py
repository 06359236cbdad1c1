"""Keys and strings as TOML writes them, and TOML that is read."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]


def read(path: Path) -> dict[str, Any]:
    """What is in the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML file: {error}.") from error


def key(name: str) -> str:
    """The name as a key of TOML.

    >>> key("age"), key("body mass")
    ('age', '"body mass"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else string(name)


def string(text: str) -> str:
    # TOML escapes as JSON does, save that it also escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def strings(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(string, texts))}]"
