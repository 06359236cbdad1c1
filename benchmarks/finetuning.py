"""Does psac train each architecture of `benchmarks/architectures`, exactly, and at which cost?

Each model is trained by `psac.make_private` for 20 steps on records whose batches are padded to
their longest record. A row has the way in which its losses were evaluated, into how many paths a
batch of 16 records falls apart, how far psac's gradients are from a plain loop over records after
the training, and the time of a private step over an ordinary one, as in survey.py; or how it was
refused, and why.

All rows are in one file, `transformers.json`, which is written after each; a row that is there for
this very code and machine is not measured again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks import records
from benchmarks.architectures import ARCHITECTURES, FAMILIES, Architecture
from benchmarks.architectures.records import Record, collate
from benchmarks.survey import Row, Survey, one_thread, timed
from psac import make_private
from psac.gradients import Evaluator
from psac.gradients.check import loops_of
from psac.gradients.vectorized.selfcheck import distance

FILE, STEPS, EXPECTED, BATCH = "transformers.json", 20, 8, 16
FOLDER = Path(__file__).parent / "architectures"


def run(folder: Path, names: Sequence[str], *, seconds: float, seed: int, fresh: bool) -> None:
    """Measure what is not there yet, and write row by row."""
    with one_thread():
        settings = {"seconds": seconds, "seed": seed}
        header = records.new_record("transformers", "all", settings=settings, sources=[])
        for name in names:
            key, survey = key_of(name, header), load(folder)
            if not fresh and survey["rows"].get(name, {}).get("key") == key:
                print(f"transformers {name}: already measured", flush=True)
                continue
            row = {"key": key, **measure(ARCHITECTURES[name], seconds=seconds, seed=seed)}
            save(folder, survey, header, name, row)
            print(f"transformers {line_of(name, row)}", flush=True)


def key_of(name: str, header: records.Record) -> str:
    """Changes with psac, machine, settings, and the line of the architecture."""
    shared = records.source_digest([FOLDER / "records.py", FOLDER / "sizes.py"])
    line = ARCHITECTURES[name]
    text = f"{header['key']} {name} {line.task} {line.settings} {line.lengths} {shared}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(folder: Path) -> Survey:
    """`runs` and `rows`, as in survey.py."""
    path = folder / FILE
    return json.loads(path.read_text()) if path.exists() else {"runs": {}, "rows": {}}


def save(folder: Path, survey: Survey, header: records.Record, name: str, row: Row) -> None:
    rows = survey["rows"] | {name: {"run": header["key"], **row}}
    runs = survey["runs"] | {header["key"]: header}
    used = {row["run"] for row in rows.values()}
    survey = {
        "runs": {key: found for key, found in runs.items() if key in used},
        "rows": {known: rows[known] for known in ARCHITECTURES if known in rows},
    }
    records.write_text(folder / FILE, json.dumps(survey, indent=1) + "\n")


def measure(architecture: Architecture, *, seconds: float, seed: int = 0) -> Row:
    """One row."""
    model, data = architecture.build(seed=seed)
    row: Row = {"parameters": sum(p.numel() for p in model.parameters())}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            row |= trained(model, data, architecture.lengths)
            row |= judged(model, collate(data[:BATCH]))
        except Exception as error:  # noqa: BLE001 - whatever psac raises is its result
            return row | {"way": "refused", "reason": records.error_text(error)}
        case = model, own_loss, collate(data[:BATCH])
        return row | timed(case, seconds=seconds, seed=seed)


def own_loss(model: nn.Module, **batch: Tensor) -> Tensor:
    return model(**batch).loss


def trained(model: nn.Module, data: list[Record], lengths: tuple[int, ...] | None = None) -> Row:
    """How it went: the way of its losses, the number of steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(data, collate_fn=collate)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"batch_size": EXPECTED, "steps": STEPS, "noise_multiplier": 1.0}
    with make_private(model, optimizer, loader, lengths=lengths, **settings) as private:
        for batch in passes(private):
            private.step(own_loss, batch)
        reason = next(iter(private.evaluator.reasons.values()), "")
        return {
            "way": ", ".join(private.ledger.isolation),
            "reason": reason,
            "steps": private.steps_taken,
        }


def passes(private: Any) -> Iterator[Any]:
    while private.steps_taken < private.planned_steps:
        yield from private.loader


def judged(model: nn.Module, batch: Record) -> Row:
    """Paths, loops of torch over records, and the distance from plain autograd."""
    evaluator = Evaluator(model)
    loops, evaluation = loops_of(evaluator, own_loss, batch)
    is_fast = evaluation.way == "vmap"
    apart = distance(evaluator.vectorized, own_loss, batch) if is_fast else 0.0
    return {
        "paths": max(1, len(evaluation.paths)),
        "loops": loops,
        "distance": float(f"{apart:.2g}"),
    }


def line_of(name: str, row: Row) -> str:
    """A row for the terminal."""
    if row["way"] == "refused":
        return f"{name:42} refused: {row['reason']}"
    reason = f"  {row['reason'][:90]}" if row["reason"] else ""
    return (
        f"{name:42} {row['way']:6} {row['paths']:3} {row['ordinary_ms']:9.2f} ms "
        f"{row['ratio']:6.2f}x {row['distance']:8.0e}  {', '.join(row['loops'])}{reason}"
    )


def family_of(name: str) -> str:
    return next(f for f, lines in FAMILIES.items() if any(line.name == name for line in lines))
