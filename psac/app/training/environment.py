"""The environment of a run: what must be equal to reproduce it bit by bit.

Versions, platform, number of processors and threads, command, device, date.  It holds nothing of
the data, and no names or paths of the machine or its user besides those in the command.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "cryptography", "safetensors")


def environment(*, seed: int | None, device: torch.device) -> dict[str, Any]:
    """For environment.json."""
    import psac

    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command(sys.argv, sys.orig_argv),
        "versions": {
            "psac": psac.__version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "seed": seed,
        "secure": seed is None,
    }


def command(arguments: Sequence[str], typed: Sequence[str]) -> str:
    """The command of this process, from `sys.argv` and `sys.orig_argv`.

    An installed command is called by its name without a path; `python -m psac` is `psac`.

    >>> command(["/opt/venv/bin/psac", "train", "my recipe.toml"], [])
    "psac train 'my recipe.toml'"
    >>> command(["mine.py", "3"], ["/usr/bin/python3", "mine.py", "3"])
    'python mine.py 3'
    """
    program = Path(arguments[0] if arguments and arguments[0] else "python")
    if program.stem == "psac" or program.parts[-2:] == ("psac", "__main__.py"):
        return shlex.join(["psac", *arguments[1:]])
    if program.is_absolute() and program.parent == Path(sys.executable).parent:
        return shlex.join([program.stem, *arguments[1:]])
    return shlex.join(["python", *typed[1:]])
