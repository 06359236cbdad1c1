"""Table 2 of the paper beside ours, as Markdown: paper value, ours, difference, and two tests.

The tests are of DP-PSAC against each other rule: Welch's on the paper's own means and deviations,
which it does not test, and on our runs; and on ours, one that is paired by seed.
"""

from __future__ import annotations

from typing import Any

from paper.claims.evidence import Evidence, paper_p
from paper.tables.markdown import chance, percent, quoted_percent
from paper.tables.row import COLUMNS, OF_THE_PAPER, OURS, Row
from paper.tables.table2 import TABLE2
from psac.clipping.rules import AdaptivePSAC

HEAD = """## Table 2. Image classification

Test accuracy in percent, mean ± standard deviation between seeds. *Difference* is ours less the paper's. The last columns are
p-values of tests of each rule against DP-PSAC: Welch's in the paper's own numbers (five runs) and in ours, and one in ours
that is paired by seed. Runs of one seed begin with the same weights and share batches and noise, so the paired test sees
smaller differences. No p is corrected for the number of tests. Intervals, the grid of learning rates and every run are in
`results/table2/`. In parentheses: the paper's number for the same task and budget, beside a recipe of our own.

| task, network, budget | rule | paper | ours | seeds | learning rate | difference | p in the paper | p here | p, paired |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
"""


def table2(evidence: Evidence) -> str:
    """The whole section."""
    lines, notes = [], []
    for name in dict.fromkeys(entry["row"] for entry in evidence.table2):
        row = TABLE2.get(name)
        title = f"{row.title}, {row.network}, {row.budget}" if row else name
        for rule, entry in evidence.row(name).items():
            if entry["paper"] is not None or entry["mean"] is not None:
                lines.append(_line(title, rule, entry, row))
        if row and row.note:
            notes.append(f"- {row.title}: {row.note}.")
    notes += _about_levels(evidence) + _about_epochs(evidence) + _about_learned_scales(evidence)
    return HEAD + "\n".join(lines) + "\n\n" + "\n".join(notes)


def _about_levels(evidence: Evidence) -> list[str]:
    """Whether DP-PSAC's mean is at least the paper's, row by row."""
    reached: dict[bool, list[str]] = {True: [], False: []}
    for name, row in TABLE2.items():
        mean = evidence.row(name).get(OURS, {}).get("mean")
        if row.paper and mean is not None:
            paper = row.paper[OURS].mean
            reached[mean >= paper].append(f"{row.title} ({mean:.2f}, the paper {paper:.2f})")
    return [
        f"- The level of the paper is {how} by DP-PSAC on: {'; '.join(titles)}."
        for how, titles in (("reached", reached[True]), ("not reached", reached[False]))
        if titles
    ]


def _about_epochs(evidence: Evidence) -> list[str]:
    """What another choice of epoch would make of rows of the paper."""
    rows = [
        f"{TABLE2[name].title} "
        + ", ".join(f"{COLUMNS[rule].title} {row[rule]['best_epoch']:.2f}" for rule in OF_THE_PAPER)
        for name, row in evidence.finished_rows().items()
        if all(row[rule].get("best_epoch") for rule in OF_THE_PAPER)
    ]
    if not rows:
        return []
    return [
        "- Ours are accuracies after the last epoch; the paper does not say which it reports. The best "
        "epoch of each run, which only the test records can tell, would give, in the mean of seeds: "
        f"{'; '.join(rows)}."
    ]


def _about_learned_scales(evidence: Evidence) -> list[str]:
    """What became of AdaptivePSAC's scale, which says why it does well or not."""
    ends = [
        f"{entry['last_scale']:.2g} ({TABLE2[entry['row']].title}: "
        f"{entry['mean'] - ours['mean']:+.2f} to DP-PSAC, learning rates "
        f"{entry['learning_rate']:g} and {ours['learning_rate']:g})"
        for entry in evidence.table2
        if entry.get("last_scale") is not None
        and (ours := evidence.row(entry["row"])[OURS])["mean"] is not None
    ]
    if not ends:
        return []
    return [
        "- AdaptivePSAC, which is ours, learns its scale from the norms of the first steps: from "
        f"{AdaptivePSAC.initial_scale:g} it went, in the median of seeds, to {'; '.join(ends)}. It is meant for norms that are "
        "orders of magnitude from 1 (`examples/adaptive_scale.py`)."
    ]


def _line(title: str, rule: str, entry: dict[str, Any], row: Row | None) -> str:
    paper, mean, test = entry["paper"], entry["mean"], entry["test"]
    own = row is not None and row.own_recipe
    quoted = row is not None and rule != OURS and {rule, OURS} <= row.paper.keys() and not own
    cells = [
        title if rule == next(iter(COLUMNS)) else "",
        COLUMNS[rule].title,
        quoted_percent(paper, own) if paper else "",
        percent(entry) if mean is not None else _absent(row),
        str(len(entry["accuracies"]) or ""),
        f"{entry['learning_rate']:g}" if mean is not None else "",
        f"{mean - paper['mean']:+.2f}" if paper and mean is not None else "",
        chance(paper_p(row.paper[rule], row.paper[OURS])) if row and quoted else "",
        chance(test["p"]) if test else "",
        chance(test["paired_p"]) if test else "",
    ]
    return f"| {' | '.join(cells)} |"


def _absent(row: Row | None) -> str:
    return "not yet" if row and row.run_here else "not run here"
