"""How cost grows: with the batch on the paper's CNN, with the length on the transformer.

All sizes and contestants are timed in one interleaved run, memory again in processes of their own.
The exponent of a quantity is its slope between the two largest sizes in log-log: 1 is linear, 2
quadratic. For the length sweep the batch is fixed at 4 sequences, so ordinary training itself is
linear in T except for its attention; a Gram form that is not kept in check would show as T squared.

>>> exponent([1, 2, 4], [5.0, 7.0, 14.0])
1.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import memory, speed
from benchmarks.records import error_text
from benchmarks.workloads import WORKLOADS, Workload, transformer

LENGTH_SWEEP_BATCH = 4


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One workload at growing sizes."""

    name: str
    title: str
    axis: str
    sizes: tuple[int, ...]

    def workload(self, size: int) -> Workload:
        """The workload at a size."""
        if self.axis == "length":
            return transformer(length=size, batch_size=LENGTH_SWEEP_BATCH)
        return WORKLOADS["cnn"].resized(size)

    def memory_task(self, size: int) -> dict[str, Any]:
        """The same for the memory processes."""
        if self.axis == "length":
            return {"workload": "transformer", "batch_size": LENGTH_SWEEP_BATCH, "length": size}
        return {"workload": "cnn", "batch_size": size}


SWEEPS = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            name="cnn-batch",
            title="CNN of the paper, batch size B",
            axis="batch_size",
            sizes=(32, 64, 128, 256, 512),
        ),
        Sweep(
            name="transformer-length",
            title=f"Transformer, sequence length T (B {LENGTH_SWEEP_BATCH})",
            axis="length",
            sizes=(64, 128, 256, 512, 1024, 2048),
        ),
    )
}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope in log-log between the two largest sizes."""
    (x0, y0), (x1, y1) = sorted(zip(sizes, values, strict=True))[-2:]
    return round(math.log(y1 / y0) / math.log(x1 / x0), 3)


def _times(
    sweep: Sweep, sizes: Sequence[int], contestants: Sequence[str], seconds: float, seed: int
) -> dict[tuple[str, int], dict[str, Any]]:
    """Every contestant at every size, interleaved; a failure is a result."""
    runs: dict[str, speed.Run] = {}
    figures: dict[tuple[str, int], dict[str, Any]] = {}
    for size in sizes:
        workload = sweep.workload(size)
        batch = workload.make_batch(seed=seed)
        for name in contestants:
            try:
                runs[f"{name}@{size}"] = speed.bound_run(name, workload, batch, seed=seed)
            except Exception as error:  # noqa: BLE001 - whatever a library raises is its result
                figures[name, size] = {"status": "cannot run", "error": error_text(error)}
    # The largest sizes take seconds each; the trend needs no more than a few runs of them.
    speed.keep_memory()
    times = speed.interleave(runs, budget_seconds=seconds, seed=seed, min_runs=3)
    for key, values in times.items():
        name, size = key.split("@")
        figures[name, int(size)] = {
            "status": "ran",
            "lower_quartile_seconds": round(speed.lower_quartile(values), 6),
            "runs": len(values),
        }
    return figures


def measure(
    sweep: Sweep,
    contestants: Sequence[str],
    *,
    sizes: Sequence[int],
    seconds: float,
    seed: int = 0,
) -> dict[str, Any]:
    """Time and memory at every size, and how they grow."""
    times = _times(sweep, sizes, contestants, seconds, seed)
    points = []
    for size in sizes:
        used = memory.measure(
            contestants=contestants, repeats=1, seed=seed, **sweep.memory_task(size)
        )
        both = {name: {"time": times[name, size], "memory": used[name]} for name in contestants}
        points.append({"size": size, "contestants": both})
    return {
        "title": sweep.title,
        "axis": sweep.axis,
        "points": points,
        "exponents": {name: _exponents(points, name) for name in contestants},
    }


def _exponents(points: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    """Exponents of time and memory of a contestant, where it ran at two sizes at least."""
    figures = {"time": "lower_quartile_seconds", "memory": "steady_mb"}
    result = {}
    for quantity, figure in figures.items():
        ran = [
            (point["size"], point["contestants"][name][quantity][figure])
            for point in points
            if point["contestants"][name][quantity]["status"] == "ran"
        ]
        if len(ran) >= 2:
            result[quantity] = exponent(*zip(*ran, strict=True))
    return result
