"""`psac.check`: what the engine would do with a model, in a table that a person reads.

It raises nothing and says everything: which rule serves each parameter and how its norms are taken,
whether samples are isolated from each other, how far the engine is from a plain loop over samples,
and what it costs beside an ordinary step.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .capture import Captured
from .functional import LossFunction, Study, norms_of
from .groups import TOGETHER
from .plan import Plan
from .proof import ALONE
from .rules import RULES
from .training import trainable


@dataclass(frozen=True)
class Row:
    """One parameter, or several alike: how its per-sample gradients are had."""

    name: str
    count: int
    shape: tuple[int, ...]
    rule: str
    method: str


@dataclass
class Report:
    """The result of `psac.check`; print it."""

    model: str
    num_samples: int = 0
    num_parameters: int = 0
    isolated: bool = False
    way: str = "refused"  # "fast", "loop over samples" or "refused"
    reason: str = ""
    error: float | None = None  # largest relative distance to the loop
    seconds: tuple[float, float] | None = None  # ordinary, private
    peak_bytes: tuple[int, int] | None = None
    rows: list[Row] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.way != "refused"

    def title(self) -> str:
        samples = f", {self.num_samples} samples" if self.num_samples else ""
        return f"{self.model}: {self.num_parameters:,} trainable parameters{samples}"

    def facts(self) -> list[tuple[str, str]]:
        """What was found of the model as a whole, by name."""
        verdict = {"fast": "yes", "loop over samples": "yes, slowly", "refused": "NO"}[self.way]
        facts = [
            ("can be trained privately", verdict),
            ("samples are isolated", "yes" if self.isolated else "NOT SHOWN"),
        ]
        if self.error is not None:
            distance = f"{self.error:.1e} (relative, on {ALONE} samples)"
            facts.append(("distance to a plain loop", distance))
        if self.seconds:
            times = beside(*self.seconds, lambda s: f"{s * 1e3:.1f} ms")
            facts.append(("time of forward + backward", times))
        if self.peak_bytes:
            memory = beside(*self.peak_bytes, lambda b: f"{b / 2**20:.0f} MiB")
            facts.append(("peak memory above the model", memory))
        return [*facts, ("reason", self.reason)] if self.reason else facts

    def __str__(self) -> str:
        head = [("parameter", "shape", "rule", "norms by")]
        lines = table(head + [cells(row) for row in self.rows]) if self.rows else []
        width = max(len(name) for name, _ in self.facts())
        facts = [f"  {name:<{width}}  {value}" for name, value in self.facts()]
        return "\n".join([f"psac.check  {self.title()}", *lines, *facts])

    def __repr__(self) -> str:
        return str(self)


def check(model: nn.Module, loss_fn: LossFunction, batch: Any) -> Report:
    """Tries the engine on one batch and reports.

    `loss_fn(model, batch)` returns the vector of per-sample losses.
    """
    report = Report(model=type(model).__name__)
    try:
        parameters = trainable(model)
        report.num_parameters = sum(p.numel() for p in parameters.values())
        study = Study.of(model, loss_fn, batch)
        report.num_samples = study.num_samples
        plan = study.plan()
        report.isolated, report.way = True, "fast" if plan else "loop over samples"
        report.reason = study.reason
        captured = study.captured(plan)
        report.rows = rows_of(study, plan, captured, parameters)
        report.error = study.error
        report.seconds, report.peak_bytes = costs(study, plan, list(parameters.values()))
    except Exception as error:  # noqa: BLE001 - the report says what happened, whatever it was
        report.way, report.reason = "refused", f"{type(error).__name__}: {error}"
    return report


def rows_of(
    study: Study, plan: Plan | None, captured: Any, parameters: dict[str, nn.Parameter]
) -> list[Row]:
    rules: dict[str, list[str]] = {name: [] for name in parameters}
    methods = dict.fromkeys(parameters, "sample by sample")
    if plan is not None and isinstance(captured, Captured):
        graph = study.graph
        for cluster in plan.clusters:
            used = dict.fromkeys(rule_name(graph.names[number]) for number, _ in cluster.uses)
            for name in cluster.parameters:
                rules[name] += used
                methods[name] = plan.methods.get(cluster.parameters, "no gradient in this batch")
        for name in plan.unused:
            methods[name] = "not used: zero"
    found: dict[tuple, list[str]] = {}
    for name, p in parameters.items():
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
        key = (pattern, tuple(p.shape), ", ".join(rules[name]) or "-", methods[name])
        found.setdefault(key, []).append(name)
    return [
        Row(pattern if len(names) > 1 else names[0], len(names), shape, rule, method)
        for (pattern, shape, rule, method), names in found.items()
    ]


def rule_name(node: str) -> str:
    return RULES[node].__name__ if node in RULES else f"generic ({node.removesuffix('Backward0')})"


def costs(
    study: Study, plan: Plan | None, parameters: list[nn.Parameter]
) -> tuple[tuple, tuple | None]:
    """(ordinary, private) seconds and peak bytes of forward and backward, taken in turns."""

    def ordinary() -> None:
        with torch.enable_grad():
            torch.autograd.grad(study.run().sum(), parameters, allow_unused=True)

    def private() -> None:
        captured = study.again().captured(plan)
        ones = torch.ones(study.num_samples, dtype=norms_of(captured).dtype)
        captured.weighted_sums([ones], TOGETHER)

    times: tuple[list[float], list[float]] = ([], [])
    peaks = peak_of(ordinary), peak_of(private)
    for _ in range(3):
        for kind, run in enumerate((ordinary, private)):
            start = time.perf_counter()
            run()
            times[kind].append(time.perf_counter() - start)
    return (min(times[0]), min(times[1])), (peaks if None not in peaks else None)


def peak_of(run: Callable[[], None]) -> int | None:
    """Bytes above what was in use before; None where the system does not tell."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        reset.write_text("5")
        before = kilobytes(status, "VmRSS")
        run()
        return max(0, kilobytes(status, "VmHWM") - before) * 1024
    except OSError:
        run()
        return None


def kilobytes(status: Path, name: str) -> int:
    (line,) = (line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def beside(ordinary: float, private: float, text: Callable[[float], str]) -> str:
    ratio = f", {private / ordinary:.2f}x" if ordinary else ""
    return f"{text(private)} (ordinary {text(ordinary)}{ratio})"


def cells(row: Row) -> tuple[str, str, str, str]:
    times = f"  x{row.count}" if row.count > 1 else ""
    return row.name + times, "x".join(map(str, row.shape)) or "scalar", row.rule, row.method


def table(lines: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    text = [
        "  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return [text[0], "  " + "  ".join("-" * w for w in widths), *text[1:], ""]
