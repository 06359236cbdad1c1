"""How much memory a step takes: each contestant and workload in a process of its own.

The figure is the peak of the resident memory during the steps over the baseline, which is taken
once model and batch exist; so it counts activations, gradients, per-sample data, noise, optimizer
and whatever a contestant keeps between steps. What makes it trustworthy:
- the kernel's own peak (VmHWM), reset at the baseline through /proc/self/clear_refs: no sampling;
- before the baseline, one step on a small throw-away model and batch loads all code;
- malloc gives every block above 64 kB its own mapping and returns it at once, MKL keeps no
  buffers, huge pages are off: resident memory is then what is alive, not what was once used;
- it is repeated in new processes, and beside it stands the exact peak of live tensor bytes from
  torch's allocator, which knows nothing of scratch space inside kernels but never varies.
`first` is the peak of the first two steps, in which psac compares its gradients with plain autograd
and learns how large activations are; `steady` is that of later ones.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.records import ROOT, error_text
from benchmarks.workloads import WORKLOADS, Batch, Workload, transformer

MEGABYTE = 2**20
FIRST_STEPS = 2
STEADY_STEPS = 2  # the peak repeats to within 0.2 MB: more steps would only cost time
SMALL_BATCH = 7  # a size that no other dimension of the workloads has
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_MMAP_MAX_": "1000000",
    "MALLOC_ARENA_MAX": "1",
    "MKL_DISABLE_FAST_MM": "1",
}
FIGURES = ("first", "steady", "tensors")


def measure(
    workload: str,
    contestants: Sequence[str],
    *,
    repeats: int,
    seed: int = 0,
    batch_size: int | None = None,
    length: int | None = None,
    timeout_seconds: float = 900,
) -> dict[str, dict[str, Any]]:
    """Megabytes of every contestant on a workload, median of `repeats` processes."""
    task = {"workload": workload, "seed": seed, "batch_size": batch_size, "length": length}
    figures: dict[str, dict[str, Any]] = {}
    for name in contestants:
        runs = [_run_child({**task, "contestant": name}, timeout_seconds) for _ in range(repeats)]
        figures[name] = _summary(runs)
    return _with_ratios(figures)


def _run_child(task: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """One process, one contestant; a crash or a kill for lack of memory is a result too."""
    arguments = [sys.executable, "-m", "benchmarks.memory", json.dumps(task)]
    try:
        done = subprocess.run(
            arguments,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return {"status": "cannot run", "error": f"took more than {timeout_seconds:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"status": "cannot run", "error": f"the process ended with {done.returncode}"}
    return json.loads(lines[-1])


def _summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    failures = [run for run in runs if run["status"] != "ran"]
    if failures:
        return failures[0]
    median = {f"{f}_mb": statistics.median(run[f"{f}_mb"] for run in runs) for f in FIGURES}
    return {"status": "ran", **median, "runs": list(runs)}


def _with_ratios(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    base = figures.get("ordinary", {})
    for figure in figures.values():
        if figure["status"] == "ran" and base.get("status") == "ran":
            figure["ratio"] = round(figure["steady_mb"] / base["steady_mb"], 4)
            figure["first_ratio"] = round(figure["first_mb"] / base["first_mb"], 4)
            figure["tensors_ratio"] = round(figure["tensors_mb"] / base["tensors_mb"], 4)
    return figures


def _status_mb(field: str) -> float:
    """VmRSS or VmHWM of this process."""
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    if match is None:
        raise RuntimeError(f"/proc/self/status has no {field}; memory is measured on Linux only")
    return int(match.group(1)) / 1024


def _peak_mb() -> float:
    """The kernel's peak; where it cannot be reset, the peak of the whole process."""
    peak = _status_mb("VmHWM")
    return peak if peak > 0 else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _reset_peak() -> None:
    """Start a new VmHWM from the present size (Linux: 5 in clear_refs)."""
    gc.collect()
    _libc().malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _disable_huge_pages() -> None:
    set_thp_disable = 41
    _libc().prctl(set_thp_disable, 1, 0, 0, 0)


def _live_tensor_peak_mb(run: Callable[[], object]) -> float:
    """Peak of live tensor bytes during `run` over those at its start, from torch's allocator."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    memory = [event for event in events if event.get("name") == "[memory]"]
    memory.sort(key=lambda event: event["ts"])
    live = peak = 0
    for event in memory:
        live += event["args"]["Bytes"]
        peak = max(peak, live)
    return peak / MEGABYTE


def _own_mb(model: nn.Module, batch: Batch) -> float:
    """What model and batch themselves hold, which the baseline already contains."""
    held = [*model.parameters(), *model.buffers(), *batch.inputs.values(), batch.labels]
    return sum(tensor.nbytes for tensor in held) / MEGABYTE


def _resolve(task: dict[str, Any]) -> Workload:
    """The workload of a task, at another length or batch size if it says so."""
    if task["length"]:
        return transformer(length=task["length"], batch_size=task["batch_size"])
    workload = WORKLOADS[task["workload"]]
    return workload.resized(task["batch_size"]) if task["batch_size"] else workload


def measure_here(task: dict[str, Any]) -> dict[str, Any]:
    """The measurement itself; run it in a process of its own."""
    from benchmarks.contestants import CONTESTANTS, silence_known_warnings, warmed_up

    silence_known_warnings()
    _disable_huge_pages()
    workload, name, seed = _resolve(task), task["contestant"], task["seed"]
    warmed_up(name, workload, workload.make_batch(batch_size=SMALL_BATCH, seed=seed), seed=seed)
    model, batch = workload.build(seed=seed), workload.make_batch(seed=seed)
    _reset_peak()
    baseline = _status_mb("VmRSS")
    step = CONTESTANTS[name](workload, model, len(batch))
    for _ in range(FIRST_STEPS):
        step(batch)
    first = _peak_mb() - baseline
    _reset_peak()
    for _ in range(STEADY_STEPS):
        step(batch)
    steady = _peak_mb() - baseline
    tensors = _live_tensor_peak_mb(lambda: step(batch))
    return {
        "status": "ran",
        "baseline_mb": round(baseline, 1),
        "model_and_batch_mb": round(_own_mb(model, batch), 1),
        "first_mb": round(first, 1),
        "steady_mb": round(steady, 1),
        "tensors_mb": round(tensors, 1),
    }


def main(task: dict[str, Any]) -> None:
    """Print the result, or why there is none, as one line of JSON."""
    try:
        result = measure_here(task)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is its result
        result = {"status": "cannot run", "error": error_text(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
