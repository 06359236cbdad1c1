"""`psac version`: what is installed, and what of it is used."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
from typing import Annotated, Any

import typer
from rich.table import Table

import psac
from psac.app.cli.console import as_typed, console

# What an extra brings, by the module that shows whether it is there.
EXTRAS = {
    "cli": ("typer", "rich"),
    "plots": ("matplotlib",),
    "data": ("PIL", "pyarrow"),
    "hf": ("transformers", "peft"),
    "tensorboard": ("tensorboard",),
    "bench": ("opacus",),
}


def version(
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also of what psac stands on, and how it is set up.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """The version of psac; --verbose for a report of an error."""
    found = facts() if verbose else {"psac": psac.__version__}
    if as_json:
        print(json.dumps(found))
    elif not verbose:
        console.print(psac.__version__)
    else:
        table = Table.grid(padding=(0, 2))
        for name, value in found.items():
            table.add_row(f"[bold]{name}[/]", _said(value))
        console.print(table)


def facts() -> dict[str, Any]:
    """What decides how psac runs here."""
    import torch

    from psac.app.data.store import cache_folder
    from psac.noise import loops

    packages = ("torch", "numpy", "scipy", "dp-accounting", "cryptography")
    there = {
        extra: all(importlib.util.find_spec(module) for module in modules)
        for extra, modules in EXTRAS.items()
    }
    return {
        "psac": psac.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: importlib.metadata.version(name) for name in packages},
        "noise generator": "compiled" if loops.compiled() else "by torch: no C compiler",
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.is_available(),
        "data cache": as_typed(cache_folder()),
        "extras": there,
    }


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"[green]{k}[/]" if v else f"[dim]no {k}[/]" for k, v in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
