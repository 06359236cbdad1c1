"""`psac version`: the version of psac and of what it depends on."""

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

# The modules that each extra installs.
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
        bool, typer.Option("--verbose", help="Also show dependencies, hardware and settings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the version; --verbose adds what a bug report needs."""
    versions = facts() if verbose else {"psac": psac.__version__}
    if as_json:
        print(json.dumps(versions))
    elif not verbose:
        console.print(psac.__version__)
    else:
        table = Table.grid(padding=(0, 2))
        for name, value in versions.items():
            table.add_row(f"[bold]{name}[/]", _said(value))
        console.print(table)


def facts() -> dict[str, Any]:
    """What a bug report needs."""
    import torch

    from psac.app.data.store import cache_folder
    from psac.noise import loops

    packages = ("torch", "numpy", "scipy", "dp-accounting", "cryptography")
    installed = {
        extra: all(importlib.util.find_spec(module) for module in modules)
        for extra, modules in EXTRAS.items()
    }
    return {
        "psac": psac.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: importlib.metadata.version(name) for name in packages},
        "noise generator": "compiled" if loops.compiled() else "torch (no C compiler found)",
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.is_available(),
        "data cache": as_typed(cache_folder()),
        "extras": installed,
    }


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"[green]{k}[/]" if v else f"[dim]no {k}[/]" for k, v in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
