"""A table of the paper beside ours: computed from result files alone, as JSON and as Markdown.

    | rule | paper | ours | seeds | learning rate | minus DP-PSAC | p | p, paired |    for each task

Accuracies are percentages of test records after the last epoch, mean and standard deviation between
seeds.  The last columns are tests of each rule against DP-PSAC on our runs: Welch's, with the 95 %
interval of the difference, and one that is paired by seed, which sees more, because runs of one
seed begin with the same weights and share batches and noise.  A row of which runs are missing says
so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paper.tables.row import OURS, Row
from paper.tables.study import Result, Study
from psac.app.reporting.statistics import paired, welch
from psac.app.training.run import write_json
from psac.checkpoint.saving import write_atomically
from psac.clipping.rules import AdaptivePSAC

Entry = dict[str, Any]


def write_table(studies: Sequence[Study], folder: Path, title: str) -> Path:
    """Writes table.json and table.md, and returns the latter."""
    found = entries(studies, folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "table.json", found)
    text = title + markdown([study.row for study in studies], found)
    write_atomically(folder / "table.md", text.encode())
    return folder / "table.md"


def entries(studies: Iterable[Study], command: str) -> list[Entry]:
    """The table as JSON: an entry for each row and rule."""
    return [_entry(study, rule, command) for study in studies for rule in study.row.columns]


def _entry(study: Study, rule: str, command: str) -> Entry:
    row, results = study.row, study.results_of(rule)
    accuracies = [100 * result["accuracy"] for result in results]
    paper = row.paper.get(rule)
    return {
        "row": row.name,
        "rule": rule,
        "command": f"python -m paper {command} --row {row.name}",
        "paper": None if paper is None else {"mean": paper.mean, "deviation": paper.deviation},
        "accuracies": accuracies,
        "mean": statistics.fmean(accuracies) if accuracies else None,
        "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "wanted": len(row.seeds),
        "learning_rate": study.rate(rule),
        "validation": _tried(study, rule),
        "epsilon": max((e for r in results if (e := r["epsilon"]) is not None), default=None),
        "last_scale": _median(result.get("last_scale") for result in results),
        "constant": _median(result.get("constant_accuracy") for result in results),
        "best_epoch": statistics.fmean(map(_best_epoch, results)) if results else None,
        "minutes": sum(result["seconds"] for result in results) / 60,
        "test": _tested(study, rule),
    }


def _best_epoch(result: Result) -> float:
    """What would be reported if the epoch were chosen by the test records, which it is not."""
    return 100 * max(accuracy for _, accuracy in result["accuracy_by_epoch"])


def _median(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def _tried(study: Study, rule: str) -> dict[str, float]:
    """The accuracy on held-out training records, by learning rate."""
    results = [(recipe, study.result(recipe)) for recipe in study.tuning(rule)]
    return {
        f"{recipe.learning_rate:g}": 100 * found["accuracy"] for recipe, found in results if found
    }


def _tested(study: Study, rule: str) -> Entry | None:
    """Welch's test against DP-PSAC, and the one that is paired by seed."""
    own, theirs = _by_seed(study, OURS), _by_seed(study, rule)
    if rule == OURS or min(len(own), len(theirs)) < 2:
        return None
    low, high, p = welch([*theirs.values()], [*own.values()])
    difference = statistics.fmean(theirs.values()) - statistics.fmean(own.values())
    both = [seed for seed in own if seed in theirs]
    pairs = [theirs[seed] for seed in both], [own[seed] for seed in both]
    paired_p = paired(*pairs)[-1] if len(both) > 1 else math.nan
    return {"difference": difference, "low": low, "high": high, "p": p, "paired_p": paired_p}


def _by_seed(study: Study, rule: str) -> dict[int, float]:
    return {result["recipe"]["seed"]: 100 * result["accuracy"] for result in study.results_of(rule)}


# Markdown
HEAD = (
    *("rule", "paper", "ours", "seeds", "learning rate"),
    *("minus DP-PSAC", "p (Welch)", "p (paired by seed)"),
)


def markdown(rows: Sequence[Row], found: Sequence[Entry]) -> str:
    """The table for people: a block for each row that is run, and a line for each that is not."""
    by_row = {row.name: [entry for entry in found if entry["row"] == row.name] for row in rows}
    there = [row for row in rows if row.run_here or any(e["validation"] for e in by_row[row.name])]
    blocks = [_block(row, by_row[row.name]) for row in there]
    absent = [_absent(row) for row in rows if row not in there]
    return "\n\n".join([*blocks, *(["\n".join(absent)] if absent else [])]) + "\n"


def _block(row: Row, found: list[Entry]) -> str:
    lines = [
        f"### {row.title}, {row.network}, {row.budget}",
        "",
        *([f"{row.note[0].upper()}{row.note[1:]}.", ""] if row.note else []),
        _line(HEAD),
        _line(["---"] + ["---:"] * (len(HEAD) - 1)),
        *(_line(_cells(entry, found, row)) for entry in found),
        "",
        *_constant(found),
        *_scales(row, found),
        *_tuning(row, found),
    ]
    return "\n".join(lines)


def _constant(found: list[Entry]) -> list[str]:
    """What the accuracies must be held against."""
    share = _median(entry.get("constant") for entry in found)
    return [] if share is None else [f"The same answer to all records: {100 * share:.2f}.\n"]


def _scales(row: Row, found: list[Entry]) -> list[str]:
    """Where the scales that rules learned were at the end."""
    return [
        f"The scale that {row.columns[entry['rule']].title} learns began at "
        f"{AdaptivePSAC.initial_scale:g} and was "
        f"{entry['last_scale']:.2g} at the end (median of seeds).\n"
        for entry in found
        if entry.get("last_scale") is not None
    ]


def _cells(entry: Entry, found: list[Entry], row: Row) -> list[str]:
    best = max((other["mean"] for other in found if other["mean"] is not None), default=None)
    ours, paper, test = percent(entry), entry["paper"], entry["test"]
    rate = entry["learning_rate"]
    return [
        row.columns[entry["rule"]].title,
        "" if paper is None else quoted_percent(paper, row.own_recipe),
        f"**{ours}**" if entry["mean"] is not None and entry["mean"] == best else ours,
        f"{len(entry['accuracies'])} of {entry['wanted']}",
        "" if rate is None else f"{rate:g}",
        ""
        if test is None
        else f"{test['difference']:+.2f} [{test['low']:+.2f}, {test['high']:+.2f}]",
        "" if test is None else chance(test["p"]),
        "" if test is None else chance(test["paired_p"]),
    ]


def chance(p: float) -> str:
    """A p-value; nothing where there is no test."""
    return "" if math.isnan(p) else "below 0.001" if p < 0.001 else f"{p:.3f}"


def percent(value: Mapping[str, Any]) -> str:
    """Mean and deviation."""
    if value["mean"] is None:
        return "not yet"
    spread = "" if value["deviation"] is None else f" ± {value['deviation']:.2f}"
    return f"{value['mean']:.2f}{spread}"


def quoted_percent(paper: Mapping[str, Any], own_recipe: bool) -> str:
    """A number of the paper; in parentheses beside a recipe that is not the paper's."""
    return f"({percent(paper)})" if own_recipe else percent(paper)


def _tuning(row: Row, found: list[Entry]) -> list[str]:
    """What each learning rate gave on held-out records, the chosen one bold."""
    head = [f"{rate:g}" for rate in row.learning_rates]
    lines = [
        "Learning rates, the same for every rule, by the accuracy on "
        f"{row.validation_fraction:.0%} of the training records, which were held out for it, with "
        "a seed that is not reported:",
        "",
        _line(["rule", *head]),
        _line(["---"] + ["---:"] * len(head)),
    ]
    for entry in found:
        tried, chosen = entry["validation"], entry["learning_rate"]
        cells = [f"{tried[rate]:.2f}" if rate in tried else "" for rate in head]
        if chosen is not None:
            place = head.index(f"{chosen:g}")
            cells[place] = f"**{cells[place]}**"
        lines.append(_line([row.columns[entry["rule"]].title, *cells]))
    return [*lines, *_at_the_edge(row, found)]


def _at_the_edge(row: Row, found: list[Entry]) -> list[str]:
    """Which rules might do better at a learning rate that was not tried."""
    edges = (row.learning_rates[0], row.learning_rates[-1])
    rules = [row.columns[e["rule"]].title for e in found if e["learning_rate"] in edges]
    return ["", f"Best at the edge of the grid: {', '.join(rules)}."] if rules else []


def _absent(row: Row) -> str:
    values = [
        f"{row.columns[rule].title} {percent({'mean': value.mean, 'deviation': value.deviation})}"
        for rule, value in row.paper.items()
    ]
    paper = f" The paper has {'; '.join(values)}." if values else ""
    return f"- {row.title}, {row.network}, {row.budget}: {row.note}.{paper}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
