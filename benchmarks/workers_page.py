"""results/scaling -> docs/scaling.md; nothing is measured and nothing typed here.

The model of the cost, for W workers that share a batch of B records:

    step = B / W * (time of a record) + (time of the release) + 2 (W - 1) / W * bytes / bandwidth

The time of a record and of the release (noise, optimizer, agreement) are measured on one worker of
this machine, the last term is that of a ring all-reduce without overlap, and its bandwidth is a
published one.  Latencies are left out.

>>> round(ring_seconds(8, 1e9, 12.5e9), 3)
0.14
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.records import Record

NETWORKS = {"10 Gbit/s Ethernet": 1.25e9, "100 Gbit/s Ethernet": 12.5e9, "NDR InfiniBand": 50e9}
WORKERS = (8, 64, 512)
EFFICIENT = 0.9
LAYERS, WIDTH, WORDS = 24, 1792, 32_000  # of a decoder with a table of words
PARAMETERS = 12 * LAYERS * WIDTH**2 + WORDS * WIDTH
LAYOUTS = {
    "2x1": "2 workers of 1 thread",
    "1x2": "1 worker of 2 threads",
    "1x1": "1 worker of 1 thread",
}


def write(folder: Path, page: Path | None) -> list[Path]:
    """The page, if there are results for it and a place."""
    found = records.load(folder, "workers")
    if page is None or "same-run" not in found:
        return []
    records.write_text(page, markdown(found))
    return [page]


def markdown(found: dict[str, Record]) -> str:
    """The whole page."""
    same, costs = found["same-run"], [r for n, r in found.items() if n != "same-run"]
    parts = [
        "# Several workers: the same run, and what it costs",
        "`python -m benchmarks workers` measures this page and writes it. How to train with "
        "several workers is in [the guide](guides/several-workers.md).",
        header(list(found.values())),
        "## The same run at every world size",
        "Twenty steps with a seed and without noise, of four records each on average, in physical "
        "batches of two: many workers have no record in a turn, and parts are uneven. *Error* is "
        "the largest difference of a weight from one process, over the largest weight. The noise "
        "is that of one secure release of 100,000 gradients that are zero, over its stated "
        "standard deviation. Epsilon is that of the ledger's steps at noise multiplier 1.",
        same_table(same["rows"]),
        f"Saved by 2 workers, continued by 3 and then by 1: {same['resumed']['steps']} steps, "
        f"error {same['resumed']['error']:.1e}.",
        "## The time of a step",
        "One global batch, shared by the workers; gloo on one machine. *Exchange* is the time in "
        "psac's exchanges, most of it waiting for the other worker. *Bytes* are those that a "
        "worker gives to the sum; ordinary data parallel training gives as many.",
        cost_table(costs),
        "## A model of larger clusters",
        "Time of a record and of the release: one worker of this machine, as in the table above. "
        "The sum: a ring all-reduce at the network's published bandwidth, without latency and "
        "without overlap with the computation. A GPU computes a record much faster, so its step "
        "is bound by the network at fewer workers; put your own figures into the formula in "
        "`benchmarks/workers_page.py`. *Efficiency* is the time of one worker over W times that of "
        "W workers, for the batch of the table above. The last column is the batch at which it is "
        f"{EFFICIENT:.0%}. Larger batches also need less noise relative to the sum: at a fixed "
        "epsilon and number of epochs, the noise on the mean falls with the batch.",
        model_table(costs),
        "## Memory",
        f"From shapes: a decoder of {LAYERS} layers of width {WIDTH} and {WORDS:,} words has "
        f"{PARAMETERS / 1e9:.2f} billion parameters. In float32 with Adam, a worker holds, in "
        "gigabytes, besides activations and output gradients, which are those of its part of the "
        "batch:",
        memory_table(),
        "Data parallel workers hold parameters, two moments and one sum. Under `fully_shard` "
        "parameters and moments are in shards, and a step adds the gathered parameters and the "
        "sum. What grows with the number of workers is the share that is saved between steps.",
    ]
    return "\n\n".join(parts) + "\n"


def memory_table() -> str:
    """Gigabytes of a worker, by the number of workers."""
    size = 4 * PARAMETERS / 1e9
    lines = [
        "| workers | data parallel | fully_shard, in a step | fully_shard, between steps |",
        "|---:|---:|---:|---:|",
    ]
    for workers in (1, *WORKERS):
        shards = 3 * size / workers
        lines.append(f"| {workers} | {4 * size:.1f} | {shards + 2 * size:.1f} | {shards:.2f} |")
    return "\n".join(lines)


def header(found: list[Record]) -> str:
    """On what it was measured, and how busy that was."""
    loads = [record["load_average"] for record in found]
    env = found[0]["environment"]
    busy = " The machine was shared with other work, so times are rough." if max(loads) > 1 else ""
    return (
        f"Measured on {env['cpu']}, {env['cpu_count']} threads, torch {env['torch']}; load "
        f"average at the start of the measurements {min(loads):.1f} to {max(loads):.1f}.{busy} "
        "Each time is the median of a round, of the round in which it is smallest."
    )


def same_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| workers | error | weights equal on all | epsilon | turns | without records on a worker "
        "| uneven | noise | noise equal on all |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        same = "" if row["same_epsilon"] else " (differs!)"
        lines.append(
            f"| {row['workers']} | {row['error']:.1e} | {yes(row['equal_on_all'])} | "
            f"{row['epsilon']:.4f}{same} | {row['turns']} | {row['turns_without_records']} | "
            f"{row['uneven_turns']} | {row['noise_std']:.4f} | {yes(row['noise_equal_on_all'])} |"
        )
    return "\n".join(lines)


def yes(value: bool) -> str:
    return "yes" if value else "**no**"


def cost_table(costs: list[Record]) -> str:
    lines = [
        "| model | layout | ordinary, ms | psac, ms | psac over ordinary | exchange, ms | "
        "Opacus ghost over ordinary | bytes |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for record in costs:
        for name, title in LAYOUTS.items():
            layout = record["layouts"][name]
            by = layout["contestants"]
            ordinary, psac = by["ordinary"]["ms"], by["psac"]
            opacus = f"{by['opacus_ghost']['ms'] / ordinary:.2f}" if "opacus_ghost" in by else "-"
            sent = f"{psac['bytes']:,}" if psac["bytes"] else "-"
            exchange = f"{psac['communication_ms']:.0f}" if psac["bytes"] else "-"
            lines.append(
                f"| {record['title']}, batch {record['batch_size']} | {title} | {ordinary:.0f} | "
                f"{psac['ms']:.0f} | {psac['ms'] / ordinary:.2f} | {exchange} | {opacus} | {sent} |"
            )
    return "\n".join(lines)


def model_table(costs: list[Record]) -> str:
    lines = [
        "| model | network | " + " | ".join(f"{w} workers" for w in WORKERS) + " | batch for "
        f"{EFFICIENT:.0%} at {WORKERS[-1]} |",
        "|---|---|" + "---:|" * (len(WORKERS) + 1),
    ]
    for record in costs:
        for network, bandwidth in NETWORKS.items():
            model = Model(record, bandwidth)
            cells = [f"{model.efficiency(w, record['batch_size']):.0%}" for w in WORKERS]
            batch = model.batch_for(WORKERS[-1])
            lines.append(f"| {record['title']} | {network} | {' | '.join(cells)} | {batch:,.0f} |")
    return "\n".join(lines)


class Model:
    """The formula above, of one workload on one network."""

    def __init__(self, record: Record, bandwidth: float) -> None:
        layout = record["layouts"]["1x1"]
        figure = layout["contestants"]["psac"]
        self.release = figure["release_ms"] / 1000
        self.record = (figure["ms"] / 1000 - self.release) / record["batch_size"]
        self.bytes, self.bandwidth = layout["gradient_bytes"], bandwidth

    def step(self, workers: int, batch: float) -> float:
        """Seconds."""
        exchange = ring_seconds(workers, self.bytes, self.bandwidth)
        return batch / workers * self.record + self.release + exchange

    def efficiency(self, workers: int, batch: float) -> float:
        return self.step(1, batch) / (workers * self.step(workers, batch))

    def batch_for(self, workers: int) -> float:
        """The batch at which the efficiency is EFFICIENT."""
        fixed = self.release + ring_seconds(workers, self.bytes, self.bandwidth)
        return (EFFICIENT * workers * fixed - self.release) / ((1 - EFFICIENT) * self.record)


def ring_seconds(workers: int, size: float, bandwidth: float) -> float:
    """A ring all-reduce of `size` bytes."""
    return 2 * (workers - 1) / workers * size / bandwidth
