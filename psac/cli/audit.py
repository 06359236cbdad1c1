"""`psac audit`: does the training step of this installation keep what it promises?"""

from __future__ import annotations

import typer

import psac
from psac.cli.console import console


def audit() -> None:
    """Attack the training step of this installation: does it keep what it promises?"""
    result = psac.audit()
    console.print(str(result))
    if not result.passed:
        raise typer.Exit(1)
