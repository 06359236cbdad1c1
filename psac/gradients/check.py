"""`psac.check`: what the engine would do with a model, in a table that a person reads.

It raises nothing and says everything: how the function is evaluated, which rule serves each
parameter and how its norms are taken, which operations torch runs record by record, how far the
engine is from a plain loop over records, and what it costs beside an ordinary step.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C import _functorch  # type: ignore[attr-defined]

from psac.gradients import trees
from psac.gradients.errors import SlowPathWarning
from psac.gradients.evaluator import Evaluator
from psac.gradients.groups import TOGETHER
from psac.gradients.isolation.eligibility import trainable
from psac.gradients.trees import LossFunction
from psac.gradients.vectorized.evaluate import Evaluation
from psac.gradients.vectorized.selfcheck import COMPARED, distance

# How a way of evaluation keeps records apart.
ISOLATION = {
    "vmap": "by construction (torch.vmap)",
    "alone": "by construction (one record at a time)",
    "batched": "tested (batched=True)",
}


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
    way: str = "refused"  # "vmap", "alone", "batched" or "refused"
    reason: str = ""
    error: float | None = None  # largest relative distance to the loop
    seconds: tuple[float, float] | None = None  # ordinary, private
    peak_bytes: tuple[int, int] | None = None
    rows: list[Row] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)  # operations that torch runs record by record

    @property
    def ok(self) -> bool:
        return self.way != "refused"

    def title(self) -> str:
        samples = f", {self.num_samples} records" if self.num_samples else ""
        return f"{self.model}: {self.num_parameters:,} trainable parameters{samples}"

    def facts(self) -> list[tuple[str, str]]:
        """What holds for the model as a whole, by name."""
        verdict = {"alone": "yes, slowly", "refused": "NO"}.get(self.way, "yes")
        isolation = ISOLATION.get(self.way, "not checked")
        facts = [("can be trained privately", verdict), ("records are isolated", isolation)]
        if self.loops:
            facts.append(("record by record in torch", ", ".join(self.loops)))
        if self.error is not None:
            text = f"{self.error:.1e} (relative, on {min(COMPARED, self.num_samples)} records)"
            facts.append(("distance to a plain loop", text))
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


def check(model: nn.Module, loss: LossFunction, batch: Any, *, batched: bool = False) -> Report:
    """Tries the engine on one batch: can this model be trained privately, and at what cost?

    Args:
        model: Any model. It is left as it was.
        loss: The function that `private.step` takes: a batch of one record -> its loss.
        batch: Tensors with the records along their first axis, in a tuple, list or mapping.
        batched: As for `private.step`.

    Returns:
        A report to print: how records are isolated, the rule of each parameter, the distance to
        plain autograd, time and memory. It raises nothing: if the model is refused, `way` is
        "refused" and `reason` says why and what to do.

    Examples:
        >>> import torch, psac
        >>> model = torch.nn.Linear(2, 1)
        >>> report = psac.check(model, lambda model, x: model(x).sum(), (torch.randn(8, 2),))
        >>> report.way
        'vmap'
    """
    report = Report(model=type(model).__name__)
    try:
        parameters = trainable(model)
        report.num_parameters = sum(p.numel() for p in parameters.values())
        report.num_samples = trees.num_records(batch)
        evaluator = Evaluator(model)
        if batched:
            evaluation = evaluator(loss, batch, batched=True)
        else:
            report.loops, evaluation = loops_of(evaluator, loss, batch)
        report.way = evaluation.way
        report.reason = next(iter(evaluator.reasons.values()), "")
        report.rows = rows_of(evaluation, parameters)
        if evaluation.way == "vmap":
            report.error = distance(evaluator.vectorized, loss, batch)
        report.seconds, report.peak_bytes = costs(evaluator, loss, batch, batched)
    except Exception as error:  # noqa: BLE001 - the report says what happened, whatever it was
        report.way, report.reason = "refused", f"{type(error).__name__}: {error}"
    return report


def loops_of(evaluator: Evaluator, loss: LossFunction, batch: Any) -> tuple[list[str], Evaluation]:
    """The operations that have no batching rule, as torch names them, and the evaluation."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluation = evaluator(loss, batch)
        if evaluation.way == "vmap":
            _functorch._set_vmap_fallback_warning_enabled(True)
            evaluation = evaluator.vectorized.evaluate(loss, batch)
            _functorch._set_vmap_fallback_warning_enabled(False)
    texts = [str(w.message) for w in caught if w.category is not SlowPathWarning]
    names = [re.search(r"batching rule for (\S+?)\.? ", f"{text} ") for text in texts]
    return list(dict.fromkeys(m.group(1).strip("'.") for m in names if m)), evaluation


def rows_of(evaluation: Evaluation, parameters: dict[str, nn.Parameter]) -> list[Row]:
    alike: dict[tuple, list[str]] = {}
    for name, p in parameters.items():
        method = evaluation.measured.methods.get(name, "no gradient in this batch")
        rule = ", ".join(evaluation.rules.get(name, ())) or "-"
        if evaluation.way == "alone":
            method = "record by record"
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
        alike.setdefault((pattern, tuple(p.shape), rule, method), []).append(name)
    return [
        Row(pattern if len(names) > 1 else names[0], len(names), shape, rule, method)
        for (pattern, shape, rule, method), names in alike.items()
    ]


def costs(
    evaluator: Evaluator, loss: LossFunction, batch: Any, batched: bool
) -> tuple[tuple | None, tuple | None]:
    """(ordinary, private) seconds and peak bytes of forward and backward, taken in turns.

    The ordinary step is that of the same function on the whole batch, where it can take one.
    """
    parameters = list(evaluator.parameters.values())

    def ordinary() -> None:
        with torch.enable_grad():
            value = trees.call(loss, evaluator.model, batch)
            torch.autograd.grad(value.sum(), parameters, allow_unused=True)

    def private() -> None:
        measured = evaluator(loss, batch, batched=batched).measured
        (squares,) = measured.norms_squared(TOGETHER)
        if squares is not None:
            measured.weighted_sums([torch.ones_like(squares)], TOGETHER)

    try:
        ordinary()
    except Exception:  # noqa: BLE001 - it may be written for one record alone
        return None, None
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
