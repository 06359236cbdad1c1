"""The rows of `transformers.json` -> docs/transformers-table.md; nothing is typed here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from benchmarks import finetuning, records
from benchmarks.architectures import ARCHITECTURES, FAMILIES
from benchmarks.finetuning import BATCH, EXPECTED, STEPS
from benchmarks.survey import Row, Survey
from benchmarks.survey_page import SMALL, caption, escaped


def write(folder: Path, page: Path | None) -> list[Path]:
    """The page, if there are rows for it and a place."""
    found = finetuning.load(folder)
    if page is None or not found["rows"]:
        return []
    records.write_text(page, markdown(found))
    return [page]


def markdown(found: Survey) -> str:
    """The whole page."""
    rows = found["rows"]
    parts = [
        f"# {len(rows)} architectures of transformers",
        introduction(rows),
        "## Several paths, alone, or refused: why",
        "\n".join(f"- `{name}`: {escaped(why(row))}" for name, row in slow(rows).items()),
    ]
    for family, lines in FAMILIES.items():
        mine = {line.name: rows[line.name] for line in lines if line.name in rows}
        if mine:
            parts += [f"## {family}", table(mine)]
    return "\n\n".join([*parts, caption(found)]) + "\n"


def introduction(rows: dict[str, Row]) -> str:
    slower = slow(rows)
    ratios = [r["ratio"] for r in rows.values() if r.get("ordinary_ms", 0) >= SMALL]
    median = f"{statistics.median(ratios):.2f}" if ratios else "-"
    refused = sum(row["way"] == "refused" for row in rows.values())
    alone = sum("alone" in row["way"] for row in rows.values())
    paths = len(slower) - refused - alone
    return (
        f"Tiny models of the real classes, with random weights, trained privately for {STEPS} "
        f"steps of {EXPECTED} records on average, with dropout, in batches that are padded to "
        f"their longest record where there is text. The loss is `model(**batch).loss`. "
        f"{len(rows) - len(slower)} of {len(rows)} are evaluated by `torch.vmap` for all records "
        f"at once, {paths} fall apart into paths, {alone} are computed one record at a time, and "
        f"{refused} are refused. *Distance* is the largest relative difference between psac's "
        "gradients after the training and a plain loop over records. *Ratio* is the time of the "
        f"private step without noise and optimizer on {BATCH} records, divided by that of the "
        "ordinary step, on one thread. The models are so small that fixed costs prevail; the "
        f"median of steps of {SMALL:g} ms or more is {median}x. [Benchmarks](benchmarks.md) have "
        "models of a real size."
    )


def slow(rows: dict[str, Row]) -> dict[str, Row]:
    """Those that are not evaluated for all records at once."""
    return {n: row for n, row in rows.items() if row["way"] != "vmap" or row["paths"] > 1}


def why(row: Row) -> str:
    if row["way"] == "vmap":
        return f"{row['paths']} paths for {BATCH} records, because its code branches on values."
    return f"{row['way']}: {row['reason']}"


def table(rows: dict[str, Row]) -> str:
    """One family."""
    head = ("class", "task", "way", "paths", "distance", "ordinary", "ratio")
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|---:|---:|---:|---:|"]
    lines += ["| " + " | ".join(cells(name, row)) + " |" for name, row in rows.items()]
    return "\n".join(lines)


def cells(name: str, row: Row) -> Iterable[str]:
    yield f"`{name}`"
    yield ARCHITECTURES[name].task
    yield row["way"]
    if row["way"] == "refused":
        yield from ("-", "-", "-", "-")
        return
    yield str(row["paths"])
    yield f"{row['distance']:.0e}" if row["way"] == "vmap" else "exact"
    yield f"{row['ordinary_ms']:.1f} ms"
    yield f"{row['ratio']:.2f}x"
