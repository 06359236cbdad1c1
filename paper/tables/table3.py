"""Table 3 of the paper: sentence classification with language models, a row for each task.

The paper fine-tunes all weights of roberta-base; its rows of DP-SGD and Auto-S are copied from
other papers, without deviations.  Here they can be run by who has the weights and the data.  The
rows below are run with weights that come in packages, all of them or by LoRA.  Beside the rules
stands the same model without clipping and noise, tuned over the same learning rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paper.tables.markdown import markdown
from paper.tables.row import (
    COLUMNS,
    OF_THE_PAPER,
    OURS,
    Column,
    Percent,
    Row,
    in_the_paper,
    shipped,
)
from psac.app.text.pretrained import PRETRAINED
from psac.app.training.run import read_json

OPEN = "open"
# A bound that no gradient reaches, and no noise: ordinary training by Adam.
NOT_PRIVATE = Column(
    title="not private",
    settings={"rule": "abadi", "bound": 1e6, "epsilon": None, "noise_multiplier": 0.0},
)
AS_IN_THE_PAPER = {**{rule: COLUMNS[rule] for rule in OF_THE_PAPER}, OPEN: NOT_PRIVATE}
# Gradients of a new head on features of sentences have norms of a few units, whatever the record.
# Rules that normalise them give records that are already right the weight of those that are wrong,
# and a constant answer grows: a scale of 10 keeps such records small, for all rules alike.
SCALED = {
    "abadi": Column(title="DP-SGD", settings={"bound": 3.0}),
    "auto_s": Column(title="Auto-S", settings={"r": 0.01, "bound": 0.1, "scale": 10.0}),
    OURS: Column(title="DP-PSAC", settings={"r": 0.1, "bound": 0.1, "scale": 10.0}),
    OPEN: NOT_PRIVATE,
}
NOT_HERE = "not run here: the weights of roberta-base cannot be had on this machine"
NONE = "Nothing has been run yet.\n"
NO_DATA = f"{NOT_HERE}, nor can the data"
HALF = "full data set, one epoch in place of the recipe's three, for two slow cores"
SMALL = "a small data set, on which the budget matters more than the rule"
TITLE = f"""## Table 3: sentence classification

Accuracy in percent on the dev set after the last epoch, mean ± standard deviation between seeds.
The best one is bold. Poisson sampling, add or remove one record, PLD accountant, Adam. The runs are
seeded, to be repeated: on these public data nobody's privacy is at stake. "Not private" is the same
model and schedule without clipping and noise. With MiniLM and MPNet, DP-PSAC and Auto-S have a
scale of 10, which two probes of 20 steps on 8,000 records of SST-2 suggested, and DP-SGD a bound of
3, which was reasoned and not probed. The probes also printed the accuracy on the dev set. So
differences between rules count only when scale and bound have been tuned on held-out training
records. A row says which of its runs are missing. Written by `python -m paper table3`.

What the weights have seen before: MiniLM and MPNet: {PRETRAINED["minilm"].seen[0].lower()}\
{PRETRAINED["minilm"].seen[1:]} RoBERTa: {PRETRAINED["roberta-base"].seen[0].lower()}\
{PRETRAINED["roberta-base"].seen[1:]}

"""


def _of_the_paper(name: str, title: str, values: dict[float, tuple[float, float, float]]) -> Any:
    """A row for each budget, with the recipe of the paper."""
    recipe = shipped(f"{name}-roberta")
    for epsilon, numbers in values.items():
        yield Row(
            name=f"{name}-roberta-{epsilon:g}",
            title=title,
            network="RoBERTa, all weights",
            budget=f"({epsilon:g}, 1/(2N))",
            columns=AS_IN_THE_PAPER,
            paper=in_the_paper(*map(Percent, numbers)),
            note=NOT_HERE if name == "sst2" else NO_DATA,
            settings={**recipe, "epsilon": epsilon},
            learning_rates=(2.5e-4, 5e-4, 1e-3),
            seeds=(0, 1, 2),
            run_here=False,
        )


def _sst2(model: str, title: str, lora: bool, rates: tuple[float, ...]) -> Iterable[Row]:
    settings = {**shipped(f"sst2-minilm{'-lora' if lora else ''}"), "model": model, "epochs": 1.0}
    for epsilon in (3.0, 8.0):
        yield Row(
            name=f"sst2-{model}{'-lora' if lora else ''}-{epsilon:g}",
            title="SST-2",
            network=f"{title}, {'LoRA of rank 8' if lora else 'all weights'}",
            budget=f"({epsilon:g}, 1/(2N))",
            columns=SCALED,
            paper={},
            note=f"{HALF}; other weights than the paper's",
            settings={**settings, "epsilon": epsilon},
            learning_rates=rates,
            validation_fraction=0.05,
            seeds=(0, 1, 2),
        )


def _small(name: str, title: str, records: int) -> Row:
    settings = shipped("sst2-minilm-lora")
    lengths = [32, 64, 128] if name != "cola" else [8, 16, 32, 64]
    return Row(
        name=f"{name}-minilm-lora-8",
        title=title,
        network="MiniLM, LoRA of rank 8",
        budget="(8, 1/(2N))",
        columns=SCALED,
        paper={},
        note=f"not in the paper; {SMALL}",
        settings={
            **settings,
            **{"data": name, "epsilon": 8.0, "delta": float(f"{1 / (2 * records):.2e}")},
            **{"batch_size": 500, "epochs": 10.0},
            "model_settings": {"lora": 8, "lengths": lengths},
        },
        learning_rates=(3e-3, 1e-2),
        seeds=(0, 1, 2),
    )


TABLE3: dict[str, Row] = {
    row.name: row
    for row in (
        *_sst2("minilm", "MiniLM", True, (3e-3, 1e-2)),
        *_sst2("minilm", "MiniLM", False, (2.5e-4, 5e-4)),
        *_sst2("mpnet", "MPNet", True, (3e-3, 1e-2)),
        *_sst2("mpnet", "MPNet", False, (2.5e-4, 5e-4)),
        _small("cola", "CoLA", 8551),
        _small("mrpc", "MRPC", 3667),
        _small("rte", "RTE", 2490),
        *_of_the_paper("sst2", "SST-2", {3: (91.86, 92.32, 92.43), 8: (92.09, 92.43, 92.55)}),
        *_of_the_paper("qnli", "QNLI", {3: (87.42, 86.91, 87.48), 8: (87.94, 87.85, 88.03)}),
        *_of_the_paper("qqp", "QQP", {3: (85.56, 85.76, 85.83), 8: (86.08, 86.58, 86.60)}),
        *_of_the_paper(
            "mnli", "MNLI, matched", {3: (82.45, 83.22, 82.74), 8: (83.20, 83.82, 83.65)}
        ),
    )
}


def section(results: Path) -> str:
    """The table for the page of the paper, from results/table3 alone."""
    path = results / "table3" / "table.json"
    entries = read_json(path) if path.exists() else []
    finished = {entry["row"] for entry in entries if entry["accuracies"] or entry["validation"]}
    begun = [row for row in TABLE3.values() if row.name in finished]
    waiting = [row for row in TABLE3.values() if row.name not in finished]
    blocks = markdown(begun, [e for e in entries if e["row"] in finished]) if begun else NONE
    lines = [f"- {row.title}, {row.network}, {row.budget}: {_why(row)}." for row in waiting]
    return f"{TITLE}{blocks}\nNot run yet:\n\n" + "\n".join(lines) + "\n"


def _why(row: Row) -> str:
    if row.run_here:
        return f"`python -m paper table3 --row {row.name}`"
    values = ", ".join(
        f"{row.columns[rule].title} {row.paper[rule].mean:.2f}" for rule in row.paper
    )
    return f"{row.note}. The paper has {values}"
