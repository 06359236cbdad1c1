"""The rows of `models.json` -> docs/models-table.md; nothing is measured and nothing typed here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import records, survey
from benchmarks.models import MODELS, RECORDS
from benchmarks.survey import Row, Survey

LIMIT = 3.0  # a ratio above this is named
SMALL = 3.0  # milliseconds: below, a step is mostly fixed costs


def write(folder: Path, page: Path | None) -> list[Path]:
    """The page, if there are rows for it and a place."""
    found = survey.load(folder)
    if page is None or not found["rows"]:
        return []
    records.write_text(page, markdown(found))
    return [page]


def markdown(found: Survey) -> str:
    """The whole page."""
    rows = found["rows"]
    alone = {name: row for name, row in rows.items() if row["way"] != "vmap"}
    slow = {n: row for n, row in rows.items() if row["way"] == "vmap" and row["ratio"] > LIMIT}
    large = {name: row for name, row in slow.items() if row["ordinary_ms"] >= SMALL}
    parts = [
        f"# How psac runs {len(rows)} common models",
        introduction(rows),
        summary(rows),
        f"## Under vmap and above {LIMIT:g}x",
        listed(large, lambda row: f"{row['ratio']:.1f}x of {row['ordinary_ms']:.1f} ms") or "None.",
        f"{len(slow) - len(large)} more have ordinary steps below {SMALL:g} ms, where the fixed "
        "costs of a private step dominate.",
        "## Not under vmap, and why",
        listed(alone, lambda row: f"{row['way']}: {row['reason']}") or "None.",
    ]
    for family in dict.fromkeys(entry.family for entry in MODELS.values()):
        mine = {n: row for n, row in rows.items() if MODELS[n].family == family}
        if mine:
            parts += [f"## {family}", table(mine)]
    return "\n\n".join([*parts, caption(found)]) + "\n"


def introduction(rows: dict[str, Row]) -> str:
    under_vmap = sum(row["way"] == "vmap" for row in rows.values())
    alone = sum(row["way"] == "alone" for row in rows.values())
    refused = len(rows) - under_vmap - alone
    return (
        f"{len(rows)} models with typical loss functions (`benchmarks/models`): {under_vmap} are "
        f"evaluated by `torch.vmap`, {alone} one record at a time, and {refused} are refused. "
        f"Batches have {RECORDS} records, and models are small: steps take milliseconds. "
        "*Distance* is the largest relative difference between psac's gradients and a plain loop "
        "over records. *Ratio* is the time of the private step without noise and optimizer, "
        "divided by that of the ordinary step on the same batch, on one thread."
    )


def summary(rows: dict[str, Row]) -> str:
    """Medians, where steps are large and where fixed costs prevail."""
    lines = [
        "| ordinary step | models | under vmap | median ratio | at most 3x | median of all |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    timed = [row for row in rows.values() if row["way"] != "refused"]
    for title, group in (
        (f"{SMALL:g} ms or more", [row for row in timed if row["ordinary_ms"] >= SMALL]),
        (f"less than {SMALL:g} ms", [row for row in timed if row["ordinary_ms"] < SMALL]),
    ):
        fast = [row["ratio"] for row in group if row["way"] == "vmap"]
        cells = [
            title,
            str(len(group)),
            str(len(fast)),
            f"{statistics.median(fast):.2f}x" if fast else "-",
            str(sum(ratio <= LIMIT for ratio in fast)),
            f"{statistics.median(row['ratio'] for row in group):.2f}x" if group else "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def listed(rows: dict[str, Row], text: Callable[[Row], str]) -> str:
    """Names and titles, the slowest first."""
    order = sorted(rows.items(), key=lambda item: -item[1].get("ratio", float("inf")))
    return "\n".join(
        f"- `{name}`, {MODELS[name].title}: {escaped(text(row))}" for name, row in order
    )


def table(rows: dict[str, Row]) -> str:
    """One family."""
    head = ("model", "", "way", "distance", "ordinary", "ratio", "record by record in torch")
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|---:|---:|---:|---|"]
    lines += ["| " + " | ".join(cells(name, row)) + " |" for name, row in rows.items()]
    return "\n".join(lines)


def cells(name: str, row: Row) -> Iterable[str]:
    yield f"`{name}`"
    yield escaped(MODELS[name].title)
    yield row["way"]
    if row["way"] == "refused":
        yield from ("-", "-", "-", "")
        return
    yield f"{row['distance']:.0e}" if row["way"] == "vmap" else "exact"
    yield f"{row['ordinary_ms']:.1f} ms"
    yield f"**{row['ratio']:.1f}x**" if row["ratio"] > LIMIT else f"{row['ratio']:.2f}x"
    yield ", ".join(f"`{loop}`" for loop in row["loops"])


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def caption(found: Survey) -> str:
    """Versions, machines and commands."""
    runs = list(found["runs"].values())
    newest = max(runs, key=lambda run: run["date"])
    env, commands = newest["environment"], sorted({run["command"] for run in runs})
    mixed = len({run["source_digest"] for run in runs}) > 1
    return (
        f"psac {env['psac']} (source {newest['source_digest']}), torch {env['torch']}, "
        f"transformers {env['transformers']}, Python {env['python']}; {env['cpu']}, one thread; "
        f"{newest['date'][:10]}; commands {', '.join(f'`{text}`' for text in commands)}."
        + (" The rows were measured with several versions of the code." if mixed else "")
    )
