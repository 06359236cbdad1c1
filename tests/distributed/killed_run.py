"""A run that workers are killed in: `torchrun -m tests.distributed.killed_run FOLDER`.

Each worker writes its process id, and a line for each step that it has seen released.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import psac
from tests.interrupted_run import Records, loss

STEPS = 150


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    private = psac.make_private(
        model, optimizer, Records(True), batch_size=8, steps=STEPS, noise_multiplier=1.0, delta=1e-3
    )
    checkpoint = folder / "run.safetensors"
    if checkpoint.exists():
        psac.load_checkpoint(checkpoint, private)
    else:
        psac.save_checkpoint(checkpoint, private)
    session = os.environ["TORCHELASTIC_RESTART_COUNT"]
    with open(folder / f"worker-{session}-{dist.get_rank()}", "a", buffering=1) as file:
        file.write(f"{os.getpid()}\n")
        while private.ledger.steps < STEPS:
            for batch in private.loader:
                private.step(loss, batch)
                file.write("a step\n")
                time.sleep(0.01)
                if private.steps_taken % 20 == 0:
                    psac.save_checkpoint(checkpoint, private)
    psac.save_checkpoint(checkpoint, private)
    if dist.get_rank() == 0:
        (folder / "ledger").write_text(str(private.ledger.steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
