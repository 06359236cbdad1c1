"""The folder for what can be had again: data sets, weights, compiled code.

It is PSAC_CACHE, else XDG_CACHE_HOME/psac, else ~/.cache/psac.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder, which need not exist; raises RuntimeError if the user has no home directory."""
    if folder := os.environ.get("PSAC_CACHE"):
        return Path(folder).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "psac"
