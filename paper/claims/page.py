"""docs/paper.md: our results beside the paper's, claim by claim, from the result files alone.

Guarantees: every number of ours on the page is read from a file under results/; what is not there
yet is said to be so; the page and its pictures are functions of those files.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from paper.claims.claims import CLAIMS
from paper.claims.comparison import table2
from paper.claims.evidence import Evidence
from paper.figures.catalogue import FIGURES, THEORY
from paper.figures.exhibit import Exhibit, write
from paper.tables.table3 import section as table3

INTRODUCTION = """# The paper, reproduced and questioned

*Differentially Private Learning with Per-Sample Adaptive Clipping* (arXiv:2212.00328), repeated with this library: every
claim with a verdict, every figure, the tables. What is wrong in its mathematics is on a page of its own, the
[errata](errata.md).

This page is written by `python -m paper page` from the files under `results/`, and is not edited by hand. Each figure is made by
a command of its own (`python -m paper fig1`, ...), Tables 2 and 3 by `python -m paper table2` and `table3`, all figures by `python -m paper all`.
"""
SETUP = """## What differs in the set-up

| | the paper | here |
|---|---|---|
| sampling | Algorithm 1: "uniformly with replacement" (Opacus, which it uses, samples by Poisson by default) | Poisson, add or remove one record |
| accountant | of Opacus; which one is not said | privacy loss distributions, tight and pessimistic |
| division | by the size of the batch | by the expected size, a public constant |
| r | "for instance, 0.1"; not said per table | 0.1 for DP-PSAC, 0.01 for Auto-S, as their authors advise |
| learning rates | how they were chosen is not said | the same grid for all rules, on held-out training records, other seeds |
| CIFAR-10 features | SimCLRv2 | EfficientNet-Lite0, trained on ImageNet |
| Imagenette, CelebA, MNLI, QQP, QNLI | run | the data cannot be had here |
| language models | roberta-base | all-MiniLM-L6-v2 and all-mpnet-base-v2 |
| runs | five | five, three of the stand-ins, with tests beside the means |
| machine | one A100 | two CPU cores: figures have shorter schedules, said in each caption |
"""


def write_page(results: Path, docs: Path) -> Path:
    """Writes paper.md and its pictures into `docs`."""
    evidence = Evidence.read(results)
    parts = [
        INTRODUCTION,
        overview(evidence),
        SETUP,
        "## Figures",
        *(shown(exhibit, results / "paper", docs) for exhibit in FIGURES.values()),
        "## Table 1. Bounds",
        *(shown(THEORY[name], results / "theory", docs) for name in ("bounds", "truth")),
        table2(evidence),
        table3(results),
        details(evidence),
    ]
    write(docs / "paper.md", "\n\n".join(part.strip() for part in parts) + "\n")
    return docs / "paper.md"


def overview(evidence: Evidence) -> str:
    """All claims in one table."""
    verdicts = [claim.judged(evidence).verdict for claim in CLAIMS]
    counted = ", ".join(f"{n} {verdict}" for verdict, n in Counter(verdicts).most_common())
    lines = [
        "## The claims",
        "",
        f"Of {len(CLAIMS)} claims: {counted}. The reasons are at the end of the page.",
        "",
        "| | the paper says | where | verdict |",
        "|---:|---|---|---|",
    ]
    for number, (claim, verdict) in enumerate(zip(CLAIMS, verdicts, strict=True), start=1):
        lines.append(f"| {number} | {claim.says} | {claim.place} | **{verdict}** |")
    return "\n".join(lines)


def details(evidence: Evidence) -> str:
    lines = ["## The claims in detail"]
    for number, claim in enumerate(CLAIMS, start=1):
        judgement = claim.judged(evidence)
        lines.append(
            f"**{number}. {claim.says}** ({claim.place})  \n*{judgement.verdict}*. "
            f"{judgement.reasons}"
        )
    return "\n\n".join(lines)


def shown(exhibit: Exhibit, results: Path, docs: Path) -> str:
    """The picture, copied beside the page, and its caption; or what to do to have them."""
    folder = results / exhibit.name
    if not (folder / "caption.md").exists():
        return f"### {exhibit.title}\n\nNot here yet: `{exhibit.command}`."
    for picture in pictures(exhibit):
        (docs / "paper").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / picture, docs / "paper" / picture)
    light, dark = pictures(exhibit)
    data = json.loads((folder / "data.json").read_text())
    return (
        f"### {exhibit.title}\n\n<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="paper/{dark}">\n'
        f'  <img alt="{exhibit.title}" src="paper/{light}">\n</picture>\n\n{exhibit.caption(data)}\n\n'
        f"*`{exhibit.command}`, {data['date']}; versions are with the data.*"
    )


def pictures(exhibit: Exhibit) -> Iterable[str]:
    return (f"{exhibit.name}-light.svg", f"{exhibit.name}-dark.svg")
