"""Functions on several processes that know each other over gloo."""

from __future__ import annotations

import multiprocessing
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def on_each(size: int, threads: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)` returns on each of so many new processes, by rank."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder, "store"))
        pipes = [context.Pipe(duplex=False) for _ in range(size)]
        processes = [
            context.Process(
                target=_run, args=(rank, size, threads, place, pipe[1], function, arguments)
            )
            for rank, pipe in enumerate(pipes)
        ]
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        try:
            return [receiver.recv() for receiver, _ in pipes]
        finally:
            for process in processes:
                process.join(60)
                process.kill()


def _run(
    rank: int,
    size: int,
    threads: int,
    place: str,
    sender: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=size)
    try:
        sender.send(function(*arguments))
    finally:
        dist.destroy_process_group()
