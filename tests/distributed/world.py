"""Real processes over gloo, for the tests of several workers."""

from __future__ import annotations

import datetime
import multiprocessing
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import psac

TIMEOUT = 120.0  # seconds, of a collective


@dataclass(frozen=True)
class Raised:
    """What a worker has raised."""

    kind: str
    text: str


def on_each(size: int, function: Callable[..., Any], *arguments: Any, timeout: float = TIMEOUT):
    """What `function(*arguments)` returns, or raises, on each of so many workers, by rank.

    None for one that has ended before it could tell.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distributed.preload"])
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder, "store"))
        pipes = [context.Pipe(duplex=False) for _ in range(size)]
        processes = [
            context.Process(
                target=worker, args=(rank, size, place, timeout, pipe[1], function, arguments)
            )
            for rank, pipe in enumerate(pipes)
        ]
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        results = [received(receiver) for receiver, _ in pipes]
        for process in processes:
            process.join(timeout)
            process.kill()
    return results


def received(receiver: Any) -> Any:
    try:
        return receiver.recv()
    except EOFError:
        return None


def returned(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """As `on_each`; fails if a worker raises."""
    results = on_each(size, function, *arguments)
    wrong = [r for r in results if r is None or isinstance(r, Raised)]
    assert not wrong, wrong[0]
    return results


def worker(
    rank: int,
    size: int,
    place: str,
    timeout: float,
    sender: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", psac.InsecureNoiseWarning)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout),
    )
    try:
        result = function(*arguments)
    except Exception as error:  # noqa: BLE001 - the test judges it
        result = Raised(type(error).__name__, f"{error}\n{traceback.format_exc()}")
    sender.send(result)
    if dist.is_initialized():
        dist.destroy_process_group()
