"""How long noise takes: ours from the secure generator beside plain pseudo-random normals.

Interleaved in one process like steps (speed.py); "ordinary" is `torch.randn`, which is neither
secure nor added to anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks import speed
from psac.noise.gaussian import add_noise_
from psac.noise.generators import SecureGenerator

SIZE = 10_000_000
TITLES = {
    "ordinary": "`torch.randn`",
    "psac": "psac, secure, added to a sum and rounded",
    "numpy": "`numpy.random.Generator.standard_normal`",
}


def measure(*, size: int, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Seconds for `size` numbers by each, with ratios to `torch.randn`."""
    total, secure = torch.zeros(size), SecureGenerator()
    plain = np.random.default_rng(seed)
    runs = {
        "ordinary": lambda: torch.randn(size),
        "psac": lambda: add_noise_([total], std=1.0, generator=secure),
        "numpy": lambda: plain.standard_normal(size, dtype=np.float32),
    }
    for run in runs.values():
        run()
    return {"contestants": speed.summarise(speed.interleave(runs, budget_seconds=seconds))}


def sentence(record: dict[str, Any]) -> str:
    """The record in words."""
    figures = record["contestants"]
    parts = [
        f"{title} {1000 * figures[name]['lower_quartile_seconds']:.0f} ms"
        for name, title in TITLES.items()
    ]
    return f"Gaussian noise for {record['settings']['size']:,} parameters: {'; '.join(parts)}."
