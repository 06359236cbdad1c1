"""What psac does with each model of `benchmarks/models`, and what that costs.

For each model: how its loss function is evaluated (vmap, alone, or refused, and why), how far
psac's gradients are from a plain loop over records, which operations torch runs record by record,
and the time of the private step (`ClippedSum.add` and `collect`) over the ordinary one (the same
function on the whole batch, and its backward), without optimizers. Both are timed in turns, on one
thread, by the clock of that thread: other work on the machine is not in it. A figure is the lower
quartile of several runs, as in speed.py.

All rows are in one file, `models.json`, which is written after each; a row that is there for this
very code, machine and settings is not measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import records, speed
from benchmarks.models import FAMILIES, MODELS, Case, Entry, batches
from psac import PSAC
from psac.gradients import ClippedSum, Evaluator, trees
from psac.gradients.check import loops_of
from psac.gradients.vectorized.selfcheck import distance

FILE = "models.json"
SHORTEST_RUN = 0.02  # seconds

Row = dict[str, Any]
Survey = dict[str, dict[str, Any]]


def run(folder: Path, names: Sequence[str], *, seconds: float, seed: int, fresh: bool) -> None:
    """Measure what is not there yet, `seconds` for each model, and write row by row."""
    with one_thread():
        header = records.new_record(
            "models", "all", settings={"seconds": seconds, "seed": seed}, sources=[]
        )
        for name in names:
            key, survey = key_of(MODELS[name], header), load(folder)
            if not fresh and survey["rows"].get(name, {}).get("key") == key:
                print(f"models {name}: already measured", flush=True)
                continue
            row = {"key": key, **measure(MODELS[name], seconds=seconds, seed=seed)}
            save(folder, survey, header, name, row)
            print(f"models {line_of(name, row)}", flush=True)


def key_of(entry: Entry, header: records.Record) -> str:
    """Changes with psac, machine, settings, and the file of the model."""
    sources = [Path(FAMILIES[entry.family].__file__ or ""), Path(batches.__file__)]
    text = header["key"] + entry.name + records.source_digest(sources)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(folder: Path) -> Survey:
    """`runs`: commands, machines and versions; `rows`: figures by model, each of one run."""
    path = folder / FILE
    return json.loads(path.read_text()) if path.exists() else {"runs": {}, "rows": {}}


def save(folder: Path, survey: Survey, header: records.Record, name: str, row: Row) -> None:
    """Put a row in its place; runs whose rows were all replaced go."""
    rows = survey["rows"] | {name: {"run": header["key"], **row}}
    runs = survey["runs"] | {header["key"]: header}
    used = {row["run"] for row in rows.values()}
    survey = {
        "runs": {key: found for key, found in runs.items() if key in used},
        "rows": {known: rows[known] for known in MODELS if known in rows},
    }
    records.write_text(folder / FILE, json.dumps(survey, indent=1) + "\n")


def measure(entry: Entry, *, seconds: float, seed: int = 0) -> Row:
    """One row."""
    model, loss, batch = entry.build(seed=seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    row: Row = {"parameters": sum(p.numel() for p in trained), "tensors": len(trained)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            row |= judged((model, loss, batch))
        except Exception as error:  # noqa: BLE001 - whatever psac raises is its result
            return row | {"way": "refused", "reason": records.error_text(error)}
        return row | timed((model, loss, batch), seconds=seconds, seed=seed)


def judged(case: Case) -> Row:
    """How it is evaluated, and how well."""
    model, loss, batch = case
    evaluator = Evaluator(model)
    loops, evaluation = loops_of(evaluator, loss, batch)
    reason = next(iter(evaluator.reasons.values()), "")
    apart = distance(evaluator.vectorized, loss, batch) if evaluation.way == "vmap" else 0.0
    return {
        "way": evaluation.way,
        "reason": reason,
        "loops": loops,
        "distance": float(f"{apart:.2g}"),
    }


def timed(case: Case, *, seconds: float, seed: int) -> Row:
    """Milliseconds of both steps, and their ratio."""
    model, loss, batch = case
    total = ClippedSum(Evaluator(model), PSAC())

    def ordinary() -> None:
        trees.call(loss, model, batch).sum().backward()
        model.zero_grad()

    def private() -> None:
        total.add(loss, batch)
        total.collect()

    runs: dict[str, speed.Run] = {"ordinary": ordinary, "private": private}
    for step in (*runs.values(), private):  # psac takes other ways in its first two steps
        step()
    clock = time.thread_time
    steps = speed.steps_of(runs, shortest_run=SHORTEST_RUN, clock=clock)
    times = speed.interleave(runs, budget_seconds=seconds, seed=seed, steps=steps, clock=clock)
    figures = {name: 1000 * speed.lower_quartile(values) for name, values in times.items()}
    return {
        "ordinary_ms": round(figures["ordinary"], 3),
        "private_ms": round(figures["private"], 3),
        "ratio": round(figures["private"] / figures["ordinary"], 3),
    }


def line_of(name: str, row: Row) -> str:
    """A row for the terminal."""
    if row["way"] == "refused":
        return f"{name:22} refused: {row['reason']}"
    reason = f"  {row['reason'][:90]}" if row["reason"] else ""
    return (
        f"{name:22} {row['way']:6} {row['ordinary_ms']:9.2f} ms {row['ratio']:6.2f}x "
        f"{row['distance']:8.0e}  {', '.join(row['loops'])}{reason}"
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
