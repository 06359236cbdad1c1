"""One of two workers on a slow network: `python -m tests.distributed.network_run RANK FOLDER`.

It trains six steps, writes the weights, and goes on until the other one is gone.
"""

from __future__ import annotations

import datetime
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import psac
from tests.private_runs import loss, private_run, weights

STEPS, TIMEOUT = 6, 20


def main(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method="tcp://10.77.0.1:29577",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )
    private = private_run(noise_multiplier=1.0, delta=1e-3, epochs=1000)
    start = time.monotonic()
    try:
        while True:
            for batch in private.loader:
                private.step(loss, batch)
                if private.steps_taken == STEPS:
                    torch.save(
                        (weights(private.model), time.monotonic() - start), folder / f"{rank}.pt"
                    )
    except psac.PrivacyError as error:
        (folder / f"{rank}.txt").write_text(str(error))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
