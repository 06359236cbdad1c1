"""Where the time of a step goes: torch's profiler, the costliest operators first.

The profiler itself costs time for every operator, so read shares here and times in `speed`. Python
between the operators is in no row; the last line tells how much that is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch.profiler import ProfilerActivity, profile

from benchmarks.contestants import TITLES, warmed_up
from benchmarks.records import error_text
from benchmarks.workloads import Workload

WARM_UP = 3  # psac compares its gradients with plain autograd in the first steps: not profiled
STEPS = 3
ROWS = 25


def profile_text(workload: Workload, contestants: Sequence[str], *, seed: int = 0) -> str:
    """A table of operators by self time for each contestant, means over a few steps."""
    parts = [f"{workload.title}, batch {workload.batch_size}: operators by self time"]
    for name in contestants:
        parts += ["", f"== {TITLES[name]} =="]
        try:
            parts.append(_table(name, workload, seed=seed))
        except Exception as error:  # noqa: BLE001 - whatever a library raises is its result
            parts.append(f"cannot run: {error_text(error)}")
    return "\n".join(parts) + "\n"


def _table(name: str, workload: Workload, *, seed: int) -> str:
    batch = workload.make_batch(seed=seed)
    step = warmed_up(name, workload, batch, seed=seed, steps=WARM_UP)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        start = time.perf_counter()
        for _ in range(STEPS):
            step(batch)
        wall = (time.perf_counter() - start) / STEPS
    events = sorted(profiler.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    lines = [f"{'ms a step':>10} {'share':>7} {'calls':>7}  operator"]
    for event in events[:ROWS]:
        spent = event.self_cpu_time_total
        lines.append(
            f"{spent / 1000 / STEPS:10.2f} {spent / total:7.1%} {event.count / STEPS:7.0f}"
            f"  {event.key}"
        )
    lines.append(f"{total / 1000 / STEPS:10.2f} {1:7.1%} {'':7}  all operators")
    lines.append(f"{1000 * wall:10.2f} {'':7} {'':7}  clock on the wall")
    return "\n".join(lines)
