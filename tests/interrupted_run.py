"""A small run that the tests of checkpoints kill: `python -m tests.interrupted_run FOLDER`."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import psac


class Records(Dataset):
    """Augmented at random, so that the state of torch's generator matters."""

    def __init__(self, slowly: bool) -> None:
        self.x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        self.slowly = slowly

    def __len__(self) -> int:
        return 60

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        if self.slowly:
            time.sleep(1e-3)
        return self.x[k] + 0.1 * torch.randn(4), k % 3


def make(seed: int | None, slowly: bool = False):
    """A private run of 14 steps (or 105, for killing) and its scheduler."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    private = psac.make_private(
        model,
        optimizer,
        Records(slowly),
        batch_size=8,
        epochs=14 if slowly else 2,
        noise_multiplier=1.0,
        clipping=psac.AdaptivePSAC(),
        physical_batch_size=5,
        seed=seed,
    )
    return private, torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)


def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def step_through(private: psac.Private, scheduler, until: int | None = None, save=None) -> None:
    """Trains to the end of the plan, or to a step; calls `save` after each step."""
    until = private.planned_steps if until is None else until
    done = private.steps_taken
    while private.steps_taken < until and private.ledger.steps < private.planned_steps:
        for batch in private.loader:
            if not private.step(loss, batch):
                continue
            for _ in range(done, private.steps_taken):  # empty draws step inside the loader
                scheduler.step()
            done = private.steps_taken
            if save is not None:
                save()
            if private.steps_taken >= until:
                break


def main(folder: Path) -> None:
    warnings.simplefilter("ignore", psac.InsecureNoiseWarning)
    private, scheduler = make(seed=0, slowly=True)
    path = folder / "checkpoint"
    if path.exists():
        psac.load_checkpoint(path, private, scheduler=scheduler)
    print("training", flush=True)

    def save() -> None:
        if private.steps_taken % 3 == 0 or private.steps_taken == private.planned_steps:
            psac.save_checkpoint(path, private, scheduler=scheduler)

    step_through(private, scheduler, save=save)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
