"""A run of seconds on records that nobody has to fetch.

`python -m tests.app.training.small FOLDER` is the run that the tests kill.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import psac
from psac.app.training import Recipe, trainer
from psac.app.training.in_memory import Records
from psac.app.training.splits import Splits

CLASSES = ("left", "middle", "right")


def records(n: int, seed: int) -> Records:
    """Three overlapping clouds."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    inputs = torch.randn(n, 4, generator=generator)
    inputs[:, 0] += 2.0 * labels - 2
    return Records(inputs, labels)


def splits(split: Any = "test", **more: Any) -> Splits:
    parts = {"training": records(120, 1), "evaluation": records(60, 2)}
    return Splits(**parts, split=split, classes=CLASSES, **more)


def recipe(**settings: Any) -> Recipe:
    """18 steps, 6 an epoch."""
    usual = {
        "data": "small",
        "model": "mlp",
        "model_settings": {"hidden": [8]},
        "rule": "adaptive_psac",
        "noise_multiplier": 4.0,  # its price is computed fast
        "delta": 1e-3,
        "batch_size": 20,
        "epochs": 3,
        "physical_batch_size": 8,
        "learning_rate": 0.5,
        "momentum": 0.9,
        "schedule": "cosine",
        "seed": 0,
    }
    return Recipe(**(usual | settings))


class Slow:
    """Says where it is, and takes its time, so that it can be killed in the middle."""

    def started(self, info: dict[str, Any]) -> None: ...

    def stepped(self, info: dict[str, Any]) -> None:
        print(info["step"], flush=True)
        time.sleep(0.05)

    def evaluated(self, info: dict[str, Any]) -> None: ...

    def ended(self, info: dict[str, Any]) -> None: ...


if __name__ == "__main__":
    warnings.simplefilter("ignore", psac.InsecureNoiseWarning)
    torch.set_num_threads(1)
    trainer.load_splits = lambda *_: splits(public=True)
    trainer.train(recipe(), Path(sys.argv[1]), observer=Slow())
