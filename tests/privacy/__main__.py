"""Measures every case, operation and innocent row; writes results/causes/ and docs/causes.md."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch

import psac
from tests.privacy import causes, innocent, operations, table
from tests.privacy.case import CASES, measure, plain


def main() -> None:
    warnings.simplefilter("ignore")
    table.RESULTS.mkdir(parents=True, exist_ok=True)
    write("causes", {"cases": list(map(of_case, loaded()))})
    write("operations", {"operations": list(map(of_operation, operations.TABLE))})
    write("innocents", {"innocents": list(map(of_innocent, innocent.TABLE))})
    table.PAGE.write_text(table.page(), encoding="utf-8")
    print(f"{table.PAGE.relative_to(table.ROOT)} written")


def loaded() -> list:
    causes.load()
    order = list(causes.CAUSES)
    return sorted(CASES, key=lambda case: order.index(case.cause))


def write(name: str, content: dict[str, Any]) -> None:
    made_with = {"psac": psac.__version__, "torch": torch.__version__, "seed": 0}
    content = {"command": table.COMMAND, "made_with": made_with, **content}
    path = table.RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def of_case(case) -> dict[str, Any]:
    outcome = measure(case)
    if not outcome.allowed:
        print(
            f"{outcome.kind:9} {case.id}: {outcome.ratio} {outcome.message[:100]}", file=sys.stderr
        )
    return {
        "id": case.id,
        "cause": case.cause,
        "title": case.title,
        "kind": outcome.kind,
        "ratio": outcome.ratio if outcome.ratio is None else round(outcome.ratio, 3),
        "elsewhere": outcome.elsewhere
        if outcome.elsewhere is None
        else round(outcome.elsewhere, 3),
        "message": outcome.message if outcome.kind != "isolated" else "",
        "ways": outcome.ways,
    }


def of_operation(operation) -> dict[str, Any]:
    found = operations.measure(operation)
    return {
        "name": operation.name,
        "ratios": {kind: round(result.ratio, 3) for kind, result in found.items()},
        "rests": {kind: float(f"{result.rest:.1e}") for kind, result in found.items()},
        "stopped": {kind: result.stopped for kind, result in found.items() if result.stopped},
        "ways": sorted({way for result in found.values() for way in result.ways}),
    }


def of_innocent(row) -> dict[str, Any]:
    way, error = innocent.tried(row)
    if (way == "refused") != bool(row.refused) or way == "raised":
        print(f"{way:9} {row.name}: {plain(error)[:100]}", file=sys.stderr)
    return {"name": row.name, "way": way, "message": plain(error)}


if __name__ == "__main__":
    main()
