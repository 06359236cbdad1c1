"""Several workers: is it the same run, and what does it cost?

`same_run` trains one small run at every world size and compares it with one process: sums without
noise, the law of the noise, epsilon, and going on with other numbers of workers.  `cost` times
private and ordinary steps of one global batch by two processes of one thread, one of two, and one
of one, one after the other in each process, and counts the bytes that travel.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.contestants import BOUND, LEARNING_RATE, NOISE_MULTIPLIER, Step
from benchmarks.processes import on_each
from benchmarks.records import error_text
from benchmarks.workloads import WORKLOADS, Batch, Workload

SIZES = (1, 2, 3, 4, 8)
LAYOUTS = ((2, 1), (1, 2), (1, 1))  # processes, threads of each
ENTRIES = 100_000  # of the noise that is looked at
DIMENSION, RECORDS = 20, 200


# ---- The same run


def same_run(sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """One row for each world size, and the run that went on with 2, 3 and 1 workers."""
    one = on_each(1, 1, trained)[0]
    rows = []
    for size in sizes:
        results = on_each(size, 1, trained)
        noises = on_each(size, 1, noise_alone)
        counts = [result["counts"] for result in results]
        rows.append(
            {
                "workers": size,
                "error": distance(results[0]["weights"], one["weights"]),
                "equal_on_all": all(r["weights"] == results[0]["weights"] for r in results),
                "epsilon": results[0]["epsilon"],
                "same_epsilon": all(r["epsilon"] == one["epsilon"] for r in results),
                "turns": len(counts[0]),
                "turns_without_records": sum(0 in turn for turn in zip(*counts, strict=True)),
                "uneven_turns": sum(len(set(turn)) > 1 for turn in zip(*counts, strict=True)),
                "noise_std": noises[0]["std"],
                "noise_equal_on_all": len({n["sum"] for n in noises}) == 1,
            }
        )
    return {"rows": rows, "resumed": resumed(one["weights"])}


def resumed(expected: list[float]) -> dict[str, Any]:
    """By two workers, then three, then one."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "run.safetensors"))
        parts = [(2, 7), (3, 14), (1, 20)]
        results = [on_each(size, 1, trained, path, until)[0] for size, until in parts]
    return {"error": distance(results[-1]["weights"], expected), "steps": results[-1]["steps"]}


def trained(path: str | None = None, until: int = 20) -> dict[str, Any]:
    """Twenty steps without noise, of draws of four records on average."""
    import psac

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIMENSION, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(RECORDS, DIMENSION, generator=generator)
    data = TensorDataset(inputs, torch.randint(3, (RECORDS,), generator=generator))
    private = psac.make_private(
        model,
        optimizer,
        data,
        batch_size=4,
        physical_batch_size=2,
        steps=20,
        noise_multiplier=0.0,
        seed=0,
    )
    if path is not None and Path(path).exists():
        psac.load_checkpoint(path, private)
    counts = []
    while private.steps_taken < until:
        for batch in private.loader:
            private.step(cross_entropy, batch)
            counts.append(0 if private.sensitive is None else len(private.sensitive.losses))
            if private.steps_taken == until:
                break
    if path is not None:
        psac.save_checkpoint(path, private)
    rate, steps = private.sampling_rate, private.ledger.steps  # of the ledger, at another noise
    priced = psac.epsilon(noise_multiplier=1.0, sampling_rate=rate, steps=steps, delta=1e-4)
    return {
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
        "epsilon": priced,
        "counts": counts,
        "steps": private.ledger.steps,
    }


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def noise_alone() -> dict[str, float]:
    """One secure release of gradients that are zero, over the standard deviation that is stated."""
    import psac

    model = nn.Linear(ENTRIES, 1, bias=False)
    before = model.weight.detach().clone()
    private = psac.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        TensorDataset(torch.zeros(64, ENTRIES)),
        batch_size=16,
        steps=1,
        noise_multiplier=2.0,
        clipping=psac.Abadi(bound=0.5),
    )
    with torch.no_grad():
        before.copy_(model.weight)
    for batch in private.loader:
        private.step(lambda model, x: model(x).sum(), batch)
    noise = (before - model.weight.detach()).double() * 16
    return {"std": float(noise.std()), "sum": float(noise.sum())}


def distance(first: list[float], second: list[float]) -> float:
    """The largest difference, over the largest entry."""
    pairs = zip(first, second, strict=True)
    return max(abs(a - b) for a, b in pairs) / max(map(abs, second))


# ---- The cost


def cost(name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step by contestant, for each layout; every layout in each of the rounds."""
    layouts: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for processes, threads in LAYOUTS:
            results = on_each(processes, threads, timed, name, seconds / rounds)
            layouts.setdefault(f"{processes}x{threads}", []).append(results[0])
    return {
        "title": WORKLOADS[name].title,
        "batch_size": WORKLOADS[name].batch_size,
        "layouts": {layout: best_of(results) for layout, results in layouts.items()},
    }


def best_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the rounds, the fastest for each contestant: the machine may be busy with other things."""
    merged: dict[str, Any] = {}
    for name in results[0]["contestants"]:
        merged[name] = min((r["contestants"][name] for r in results), key=lambda c: c["ms"])
    return {**results[0], "contestants": merged}


def timed(name: str, seconds: float) -> dict[str, Any]:
    """Interleaved steps of all contestants on this worker's part of one batch."""
    workload, size = WORKLOADS[name], dist.get_world_size()
    batch = workload.make_batch(batch_size=workload.batch_size // size, seed=dist.get_rank())
    steps: dict[str, Step] = {}
    clocks: dict[str, Clock] = {}
    models = {}
    errors: dict[str, str] = {}
    for contestant, make in CONTESTANTS.items():
        model = models[contestant] = workload.build(seed=0)
        clocks[contestant] = Clock()
        try:
            steps[contestant] = make(workload, model, clocks[contestant])
        except ImportError as error:
            errors[contestant] = error_text(error)
    times: dict[str, list[float]] = {contestant: [] for contestant in steps}
    for step in steps.values():
        step(batch)
        step(batch)
    end = time.perf_counter() + seconds
    for clock in clocks.values():
        clock.seconds, clock.release, clock.calls = 0.0, 0.0, 0
    while agreed(time.perf_counter() < end):
        for contestant, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step(batch)
            times[contestant].append(time.perf_counter() - start)
    parameters = [p for p in models["psac"].parameters() if p.requires_grad]
    return {
        "errors": errors,
        "gradient_bytes": sum(p.nbytes for p in parameters),
        "contestants": {
            contestant: {
                "ms": 1000 * statistics.median(values),
                "steps": len(values),
                "communication_ms": 1000 * clocks[contestant].seconds / len(values),
                "bytes": clocks[contestant].bytes,
                "release_ms": 1000 * clocks[contestant].release / len(values),
                "exchanges": clocks[contestant].calls / len(values),
            }
            for contestant, values in times.items()
        },
    }


def agreed(value: bool) -> bool:
    answer = torch.tensor([value], dtype=torch.int64)
    dist.all_reduce(answer, dist.ReduceOp.MIN)
    return bool(answer)


class Clock:
    """The time that is spent in exchanges, and what travels in one step."""

    def __init__(self) -> None:
        self.seconds, self.release, self.bytes, self.calls = 0.0, 0.0, 0, 0

    def around(self, call: Callable[..., Any], size_of: Callable[..., int]) -> Callable[..., Any]:
        def timed_call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            self.calls += 1
            if dist.get_world_size() > 1:
                self.bytes = max(self.bytes, size_of(*args))
            return result

        return timed_call


def psac_workers(workload: Workload, model: nn.Module, clock: Clock) -> Step:
    """`make_private` and `private.step`, on batches that are handed out as its loader does it."""
    from psac import PSAC, make_private

    private = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        range(workload.batch_size),
        batch_size=workload.batch_size,
        steps=10**9,
        noise_multiplier=NOISE_MULTIPLIER,
        clipping=PSAC(bound=BOUND),
    )
    workers: Any = private.workers
    workers.add_up = clock.around(workers.add_up, lambda tensors: sum(t.nbytes for t in tensors))
    workers.meet = clock.around(workers.meet, lambda *_: 0)
    release: Any = private.release

    def timed_release() -> None:
        start = time.perf_counter()
        release()
        clock.release += time.perf_counter() - start

    private.release = timed_release

    def step(batch: Batch) -> None:
        private._hand_out(batch, last=True)
        private.step(workload.loss, batch)

    return step


def ordinary_workers(workload: Workload, model: nn.Module, clock: Clock) -> Step:
    """`DistributedDataParallel`, as torch ships it; alone, the plain step."""
    several = dist.get_world_size() > 1
    wrapped = nn.parallel.DistributedDataParallel(model) if several else model
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step(batch: Batch) -> None:
        workload.loss(wrapped, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def opacus_workers(workload: Workload, model: nn.Module, clock: Clock) -> Step:
    """Opacus with ghost clipping over its own data parallel wrapper."""
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import (
        DistributedDPOptimizerFastGradientClipping,
    )
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        DifferentiallyPrivateDistributedDataParallel(model),
        loss_reduction="mean",
        max_grad_norm=BOUND,  # pyright: ignore[reportArgumentType] - a float, said to be an int
        use_ghost_clipping=True,
    )
    optimizer = DistributedDPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=BOUND,
        expected_batch_size=workload.batch_size // dist.get_world_size(),
        loss_reduction="mean",
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step(batch: Batch) -> None:
        criterion(workload.logits(wrapped, batch.inputs), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


CONTESTANTS: dict[str, Callable[[Workload, nn.Module, Clock], Step]] = {
    "ordinary": ordinary_workers,
    "psac": psac_workers,
    "opacus_ghost": opacus_workers,
}
