"""How long a step takes: all contestants interleaved in one process.

Each round runs the contestants once, in a fresh random order, so that a slow minute of the machine
slows all of them alike. The figure of a contestant is the lower quartile of its times (the slower
ones tell of other work on the machine), its ratio is that over the ordinary step's, with a 95 %
bootstrap interval. Rounds go on until the time budget is spent. A contestant that is many times
slower than the fastest joins only every few rounds, or it would eat the precision of the others.

As in training, a step follows others of its kind: a run is as many as take a tenth of a second,
after one that is not timed, which finds the caches as another contestant left them.  And the
allocator keeps what it has: whether a step gets fresh memory, which is dear, would else depend on
who ran before.  The first step of a fresh model is timed apart: in it psac compares its gradients
with plain autograd.

>>> lower_quartile([4.0, 1.0, 2.0, 3.0, 9.0])
2.0
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.contestants import CONTESTANTS, warmed_up
from benchmarks.records import error_text
from benchmarks.workloads import Batch, Workload

SHORTEST_RUN = 0.1  # seconds
FRESH_MODELS = 3  # whose first steps are timed
SLOW = 4.0  # a contestant joins every n-th round when it is n times this factor slower

Run = Callable[[], object]


def lower_quartile(times: Sequence[float]) -> float:
    """The time that a quarter of the runs undercut."""
    return float(np.quantile(times, 0.25))


def strides(first: Mapping[str, float], *, budget_seconds: float, min_runs: int) -> dict[str, int]:
    """Every how many rounds each contestant joins, so that all reach `min_runs` in the budget."""
    fastest = min(first.values())
    wanted = {name: max(1, round(t / (SLOW * fastest))) for name, t in first.items()}
    rounds = budget_seconds / sum(t / wanted[name] for name, t in first.items())
    most = max(1, int(rounds / min_runs))
    return {name: min(stride, most) for name, stride in wanted.items()}


def interleave(
    runs: Mapping[str, Run],
    *,
    budget_seconds: float,
    seed: int = 0,
    min_runs: int = 5,
    max_rounds: int = 1000,
    steps: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds a step of every run of every contestant, in shuffled rounds.

    Never fewer than `min_runs`, each of as many `steps` as the contestant has (default: one).
    """
    steps = steps or dict.fromkeys(runs, 1)

    def seconds_of(name: str) -> float:
        gc.collect()  # outside the clock: one contestant's garbage is not another's time
        if steps[name] > 1:
            runs[name]()  # nor is what it left in the caches
        start = clock()
        for _ in range(steps[name]):
            runs[name]()
        return (clock() - start) / steps[name]

    shuffler = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in runs}
    gc.collect()
    gc.freeze()  # what exists now is looked at no more, so the collections between runs are short
    gc.disable()
    try:
        first = {name: steps[name] * seconds_of(name) for name in runs}
        joins = strides(first, budget_seconds=budget_seconds, min_runs=min_runs) if first else {}
        end = clock() + budget_seconds
        for number in range(max_rounds):
            if clock() > end and all(len(t) >= min_runs for t in times.values()):
                break
            due = [name for name in runs if number % joins[name] == 0]
            shuffler.shuffle(due)
            for name in due:
                times[name].append(seconds_of(name))
    finally:
        gc.enable()
        gc.unfreeze()
    return times


def ratio(times: Sequence[float], base: Sequence[float], *, seed: int = 0) -> dict[str, float]:
    """Lower quartile over the base's, with a 95 % bootstrap interval."""
    generator = np.random.default_rng(seed)

    def resampled(values: Sequence[float]) -> np.ndarray:
        draws = generator.choice(np.asarray(values), size=(1000, len(values)))
        return np.quantile(draws, 0.25, axis=1)

    low, high = np.quantile(resampled(times) / resampled(base), [0.025, 0.975])
    value = lower_quartile(times) / lower_quartile(base)
    return {"ratio": round(value, 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def summarise(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """A contestant's figures for the record, its raw times included."""
    result: dict[str, dict[str, Any]] = {}
    for name, values in times.items():
        result[name] = {
            "status": "ran",
            "lower_quartile_seconds": round(lower_quartile(values), 6),
            "median_seconds": round(float(np.median(values)), 6),
            **(ratio(values, times["ordinary"]) if "ordinary" in times else {}),
            "seconds": [round(value, 6) for value in values],
        }
    return result


def measure(
    workload: Workload,
    contestants: Sequence[str],
    *,
    seconds: float,
    seed: int = 0,
    min_runs: int = 5,
) -> dict[str, dict[str, Any]]:
    """Time the contestants on a workload; one that cannot run is recorded with its reason."""
    batch = workload.make_batch(seed=seed)
    runs: dict[str, Run] = {}
    first: dict[str, float] = {}
    failed: dict[str, dict[str, Any]] = {}
    for name in contestants:
        try:
            run = bound_run(name, workload, batch, seed=seed)
            first[name] = first_step_seconds(name, workload, batch, seed=seed)
            runs[name] = run
        except Exception as error:  # noqa: BLE001 - whatever a library raises is its result
            failed[name] = {"status": "cannot run", "error": error_text(error)}
    keep_memory()
    times = interleave(
        runs, budget_seconds=seconds, seed=seed, min_runs=min_runs, steps=steps_of(runs)
    )
    figures = with_first_steps(summarise(times), first) | failed
    return {name: figures[name] for name in contestants}


def first_step_seconds(name: str, workload: Workload, batch: Batch, *, seed: int) -> float:
    """The shortest first step of a few fresh models; all code was loaded before."""
    seconds = []
    for _ in range(FRESH_MODELS):
        step = CONTESTANTS[name](workload, workload.build(seed=seed), len(batch))
        start = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def with_first_steps(
    figures: dict[str, dict[str, Any]], first: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """First steps beside the others, as multiples of the ordinary step that is not the first."""
    base = figures.get("ordinary", {}).get("lower_quartile_seconds")
    for name, figure in figures.items():
        figure["first_step_seconds"] = round(first[name], 6)
        if base:
            figure["first_step_ratio"] = round(first[name] / base, 4)
    return figures


def steps_of(
    runs: Mapping[str, Run],
    *,
    shortest_run: float = SHORTEST_RUN,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, int]:
    """How many steps make a run."""
    steps = {}
    for name, run in runs.items():
        start = clock()
        run()
        steps[name] = math.ceil(shortest_run / (clock() - start))
    return steps


def keep_memory() -> None:
    """Tells the C library to give no freed memory back; where it cannot be told, nothing changes.

    By M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of GNU's malloc.h, the latter at its largest value.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**31 - 1)
        mallopt(-3, 32 * 2**20)


def bound_run(name: str, workload: Workload, batch: Batch, *, seed: int) -> Run:
    """A warmed-up contestant with its batch in hand."""
    step = warmed_up(name, workload, batch, seed=seed)
    return lambda: step(batch)
