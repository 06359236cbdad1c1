"""Where a run ran: what must be the same for it to repeat bit by bit.

Versions, platform, number of processors and threads, command, device, date.  Nothing of the data,
and no name of the machine or its user beyond what the command holds.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import sys
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "cryptography", "safetensors")


def environment(*, seed: int | None, device: torch.device) -> dict[str, Any]:
    """For environment.json."""
    import psac

    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
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
