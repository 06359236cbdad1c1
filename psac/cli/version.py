"""`psac version`: what is installed."""

from __future__ import annotations

import psac
from psac.cli.console import console


def version() -> None:
    """The version of psac."""
    console.print(psac.__version__)
