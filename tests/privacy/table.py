"""docs/causes.md, from what was measured: `page(causes, operations, innocents)`."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

from tests.privacy.causes import CAUSES

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "causes", ROOT / "docs" / "causes.md"
NAMES = ("causes", "operations", "innocents")
COMMAND = "python -m tests.privacy"

HEAD = """\
# One record against its bound

Adding or removing one record may move the clipped sum of a step by at most the bound of the
clipping rule, whatever the record is and whatever the code around it does. This page lists the ways
in which that was broken or attacked: {cases} cases, each run through the real code on two
batches that differ by one record, with Abadi and PSAC, without noise. The ratio is

    || sums with the record - sums without it || / bound

over all steps; 1 is allowed. In a step that does not have the record, the sums must not differ at
all.

`{command}` measures everything again and writes this page from `results/causes/*.json` (psac
{psac}, torch {torch}, seed {seed}).

| outcome | cases | |
|---|---|---|
{outcomes}

`before` is what a review of the free training loop measured for the cause, in bounds.
"""

OUTCOMES = {
    "isolated": "the record moves its own step by one bound at most, and no other step",
    "refused": "`psac.PrivacyError`, before anything is released",
    "impossible": "it cannot be written any more",
    "stopped": "the function's own error, as plain torch raises it; nothing is released",
    "beyond": "code behind the noise, which psac does not judge (see the guarantee)",
    "raised": "**an error that is not psac's**: nothing is released, but no reason is given",
    "warned": "**more than one bound, with a `PrivacyWarning` and a line in the ledger**: psac "
    "cannot judge what changes outside of the function",
    "open": "**more than one bound, without a warning**",
}


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def page() -> str:
    causes, operations, innocents = map(read, NAMES)
    rows = causes["cases"]
    counts = collections.Counter(row["kind"] for row in rows)
    outcomes = "\n".join(
        f"| {kind} | {counts[kind]} | {about} |" for kind, about in OUTCOMES.items() if counts[kind]
    )
    head = HEAD.format(cases=len(rows), command=COMMAND, outcomes=outcomes, **causes["made_with"])
    parts = [head, *(section(cause, rows) for cause in CAUSES)]
    return "\n".join([*parts, of_operations(operations), of_innocents(innocents)])


def section(cause: str, rows: list[dict]) -> str:
    about, before = CAUSES[cause]
    lines = [
        f"## {cause}: {about}",
        "",
        f"Before: {before}.",
        "",
        "| case | now | way | what psac says |",
        "|---|---|---|---|",
        *(line(row) for row in rows if row["cause"] == cause),
        "",
    ]
    return "\n".join(lines)


def line(row: dict) -> str:
    says = row["message"] if row["kind"] not in ("isolated", "open") else ""
    cells = (row["title"], outcome(row), ", ".join(row["ways"]), shortened(says))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("[", "\\[") for cell in cells) + " |"


def outcome(row: dict) -> str:
    """The ratio, or the kind where there is none."""
    kind = row["kind"]
    if row["ratio"] is None:
        return kind if kind != "raised" else "**raised**"
    worst = f"{max(row['ratio'], row['elsewhere']):.3f}"
    return worst if kind == "isolated" else f"**{kind}: {worst}**" if kind != "beyond" else worst


def shortened(text: str, length: int = 160) -> str:
    text = " ".join(text.replace("`", "'").split())
    return text if len(text) <= length else text[: text.rfind(" ", 0, length)] + " ..."


def of_operations(found: dict) -> str:
    rows = found["operations"]
    kinds = list(rows[0]["ratios"])
    worst = {kind: max(row["ratios"][kind] for row in rows) for kind in kinds}
    rest = {kind: max(row["rests"][kind] for row in rows) for kind in kinds}
    stopped = {kind: [row["name"] for row in rows if kind in row["stopped"]] for kind in kinds}
    lines = [
        f"## {len(rows)} operations of torch with a record that is not finite, or huge",
        "",
        "Each operation is tried with the parameter in every position. The other records must add "
        "what they add without the record; `rest` is the difference, in bounds.",
        "",
        "| the record has | largest ratio | largest rest | plain torch raises for it, and so does "
        "psac |",
        "|---|---|---|---|",
        *(
            f"| {k} | {worst[k]:.3f} | {rest[k]:.1e} | {', '.join(stopped[k]) or 'none'} |"
            for k in kinds
        ),
        "",
        "Names: " + ", ".join(f"`{row['name']}`" for row in rows) + ".",
        "",
    ]
    return "\n".join(lines)


def of_innocents(found: dict) -> str:
    lines = [
        "## Innocent code that must not be refused",
        "",
        "| | way | |",
        "|---|---|---|",
        *(
            f"| {row['name']} | {row['way']} | {shortened(row['message'])} |".replace("\n", " ")
            for row in found["innocents"]
        ),
        "",
    ]
    return "\n".join(lines)
