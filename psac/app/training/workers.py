"""`psac train --workers N`: torchrun's own engine starts N processes that train one run together.

Worker 0 trains in the folder of the run.  The others train in copies of its small files, which are
thrown away: what they write, worker 0 writes as well.  They evaluate nothing, and print nothing.

Guarantee: what a run reads off its records with noise (the columns of a table), worker 0 reads, and
the others take it from there: it is released once, as the ledger says.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from psac.app.training.run import Run
from psac.distributed import Group

LARGE = ".safetensors"  # files that worker 0 reads and writes for all
STARTED = "PSAC_WORKER"  # set for processes that `start` has started


def is_started() -> bool:
    """Whether this process is one that `start` has started."""
    return STARTED in os.environ


def is_first() -> bool:
    """Whether it is the one that writes and prints."""
    return os.environ.get("RANK", "0") == "0" or not is_started()


def start(count: int, words: Sequence[str]) -> int:
    """Runs `psac` with these words in so many processes; returns the exit code."""
    os.environ.setdefault("LOGLEVEL", "CRITICAL")  # of torch's launcher: workers tell of errors
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    threads = max(1, (os.cpu_count() or count) // count)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ[STARTED] = "1"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        run_id=f"psac-{os.getpid()}",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "psac", *words)
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        return next((code for code in codes if code > 0), 1)
    except SignalException as stop:
        return 128 + int(stop.sigval)
    return 0


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """The processes that `start` has started know each other in here."""
    if not is_started() or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def folder_of(run: Run, group: Group) -> Iterator[Run]:
    """The run that this worker trains in: for worker 0 the run itself, else a copy."""
    if group.rank == 0:
        group.meet("the folder of the run")
        yield run
        return
    with tempfile.TemporaryDirectory(prefix="psac-worker-") as place:
        copy = Path(place, run.folder.name)
        with group.together("the folder of the run"):
            if run.folder.exists():
                shutil.copytree(run.folder, copy, copy_function=copied)
        group.meet("the folder of the run")
        yield Run(copy)


def copied(source: str, target: str) -> None:
    """Of a large file the name: worker 0 reads it, and others ask whether it is there."""
    if source.endswith(LARGE):
        Path(target).touch()
    elif not source.endswith(".lock"):
        shutil.copy(source, target)
