"""A run folder at one moment: finished, interrupted or damaged in part.

Where `psac.app.training.run` is strict, this reads what can be read, for the report; `notes` say
what could not.  A torn line is skipped.  Guarantee: epsilon is priced from the ledger; without a
ledger there is none, as nothing proves what the run wrote of it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from psac.accounting import Ledger
from psac.app import data
from psac.app.toml import tomllib
from psac.app.training import metrics
from psac.app.training.price import price, record
from psac.app.training.run import Run

KINDS = ("start", "step", "evaluation", "warning", "end")
ESSENTIAL = ("recipe.toml", "metrics.jsonl", "summary.json")  # a run has one of them at least


class NoRun(ValueError):
    """The folder does not hold a run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """What a folder says; all but `epsilon` is as it was read.  Empty or None is missing."""

    name: str
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    start: Mapping[str, Any]
    resumed: int
    steps: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Mapping[str, Any], ...]
    end: Mapping[str, Any]
    summary: Mapping[str, Any]
    mistakes: tuple[Mapping[str, Any], ...]
    mistakes_are_public: bool
    warned: tuple[str, ...]  # for the owner; what may be published is in the ledger
    ledger: Ledger | None
    epsilon: float | None
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        return bool(self.end or self.summary)

    @property
    def secure(self) -> bool | None:
        """Whether all noise came from a secure generator; None if unknown."""
        if self.ledger is not None:
            return self.ledger.secure
        return first(self.start.get("secure"), self.environment.get("secure"))

    @property
    def delta(self) -> float | None:
        sources = (self.start, self.summary, self.recipe)
        return number(first(*(source.get("delta") for source in sources)))

    @property
    def done(self) -> int:
        """The last logical step that is on record."""
        last = [line.get("step", 0) for line in (*self.steps, *self.evaluations, self.end)]
        return max([int(self.summary.get("steps", 0)), *last])

    @property
    def planned(self) -> int | None:
        return self.start.get("planned_steps")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What psac warned of, as sentences that may be published."""
        return self.ledger.warnings if self.ledger is not None else ()

    @property
    def is_proved(self) -> bool:
        """Whether the epsilon of the ledger holds for the run without conditions."""
        finite = self.epsilon is not None and math.isfinite(self.epsilon)
        conditional = self.ledger is not None and "batched" in self.ledger.isolation
        warned = bool(self.warnings or self.warned)
        return finite and self.secure is True and not (warned or conditional)

    @property
    def on_named_data(self) -> bool:
        return self.recipe.get("data") in data.names()

    @property
    def is_evaluated(self) -> bool:
        return bool(self.evaluations or self.summary)

    @property
    def on_public_records(self) -> bool:
        """Whether the model was evaluated on records that somebody stated to be public."""
        lines = [line for line in (*self.evaluations, self.end, self.summary) if line]
        held_out = bool(self.recipe.get("validation_fraction"))
        return bool(lines) and not held_out and all(map(_is_public, lines))

    @property
    def on_private_records(self) -> bool:
        """Whether it was evaluated on other records, so that the results are for their owner."""
        return self.is_evaluated and not self.on_public_records

    @property
    def held_out(self) -> bool:
        """Whether it was evaluated on a part of the training records."""
        splits = {line.get("split") for line in (*self.evaluations, self.summary)}
        return "validation" in splits or bool(self.recipe.get("validation_fraction"))

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last evaluation."""
        last = self.evaluations[-1:]
        return number(
            first(*(source.get("accuracy") for source in (self.summary, self.end, *last)))
        )

    @property
    def seconds(self) -> float | None:
        lines = [self.summary, self.end, *self.steps[-1:]]
        return number(first(*(line.get("seconds") for line in lines)))

    @property
    def title(self) -> str:
        model, where = self.recipe.get("model"), self.recipe.get("data")
        if not model or not where:
            return self.name
        return f"{Path(str(model)).name} on {Path(str(where)).name}"


def _is_public(line: Mapping[str, Any]) -> bool:
    return line.get("public") is True and line.get("private") is not False


def first(*values: Any) -> Any:
    """The first that is not None."""
    return next((value for value in values if value is not None), None)


def number(value: Any) -> float | None:
    """The value if it is a finite number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def read(folder: Path) -> RunSnapshot:
    """The run in the folder; raises `NoRun` if there is none."""
    _refuse(folder)
    files = Run(folder)
    notes: list[str] = []
    late: list[str] = []  # notes about files that only a finished run has
    lines = _lines(files.metrics_path, notes)
    kinds = {kind: _of(lines, kind) for kind in KINDS}
    mistakes, public = _mistakes(files.predictions_path, late)
    run = RunSnapshot(
        name=folder.resolve().name,
        recipe=_load(files.recipe_path, tomllib.loads, notes) or {},
        environment=_load(files.environment_path, json.loads, notes) or {},
        start=kinds["start"][-1] if kinds["start"] else {},
        resumed=sum(bool(line.get("resumed")) for line in kinds["start"]),
        steps=kinds["step"],
        evaluations=kinds["evaluation"],
        end=kinds["end"][-1] if kinds["end"] else {},
        summary=_load(files.summary_path, json.loads, late) or {},
        mistakes=mistakes,
        mistakes_are_public=public,
        warned=tuple(dict.fromkeys(str(line.get("text")) for line in kinds["warning"])),
        ledger=_load(files.ledger_path, _ledger, notes),
        epsilon=None,
        notes=(),
    )
    notes += late if run.finished and run.on_public_records else []
    run = dataclasses.replace(run, ledger=_caught_up(run, notes))
    epsilon = _epsilon(run, notes)
    if epsilon is None:  # nothing proves what the lines say either
        steps, evaluations = _unpriced(run.steps), _unpriced(run.evaluations)
        run = dataclasses.replace(run, steps=steps, evaluations=evaluations)
    return dataclasses.replace(run, epsilon=epsilon, notes=tuple(notes))


def _unpriced(lines: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    return tuple({k: v for k, v in line.items() if k != "epsilon"} for line in lines)


def _refuse(folder: Path) -> None:
    """Raises for a folder that is not a run, with what is missing."""
    sought = ", ".join(ESSENTIAL)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise NoRun(f"'{folder}' {what}. Pass the folder of a run, which holds {sought}.")
    if any((folder / name).is_file() for name in ESSENTIAL):
        return
    inside = sorted(path.name for path in folder.iterdir())
    runs = [name for name in inside if any((folder / name / file).is_file() for file in ESSENTIAL)]
    held = f"It holds {', '.join(inside[:8])}{', ...' if len(inside) > 8 else ''}."
    hint = f" It contains runs; pass their folders: {', '.join(runs)}." if runs else ""
    raise NoRun(
        f"'{folder}' is not a run: it has none of {sought}. {held if inside else 'It is empty.'}"
        f"{hint or ' Pass the folder of a training run.'}"
    )


def _load(path: Path, parse: Callable[[str], Any], notes: list[str]) -> Any:
    """The content of a file, or None and a note."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{path.name} is missing.")
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} cannot be read: {error}")
    return None


def _ledger(text: str) -> Ledger:
    return Ledger.from_json(json.loads(text))


def _lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    lines, damaged = metrics.parse(_load(path, str, notes) or "")
    if damaged:
        numbers = ", ".join(map(str, damaged[:5]))
        what = "a damaged line was" if len(damaged) == 1 else f"{len(damaged)} damaged lines were"
        notes.append(f"{path.name}: {what} skipped (line {numbers}).")
    return lines


def _of(lines: Sequence[Mapping[str, Any]], kind: str) -> tuple[Mapping[str, Any], ...]:
    matches = [line for line in lines if line.get("kind") == kind]
    return tuple(sorted(matches, key=lambda line: line.get("step", 0)))


def _mistakes(path: Path, notes: list[str]) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """Wrong predictions, and whether they are of public records."""
    content = _load(path, json.loads, notes)
    if not isinstance(content, dict) or not isinstance(content.get("mistakes"), list):
        return (), False
    rows = [row for row in content["mistakes"] if isinstance(row, dict)]
    wrong = (row for row in rows if row.get("label") != row.get("prediction"))
    return tuple(wrong), _is_public(content)


def _caught_up(run: RunSnapshot, notes: list[str]) -> Ledger | None:
    """The ledger, extended by the steps that the run took after it was last written."""
    if run.ledger is None or run.done <= run.ledger.steps:
        return run.ledger
    if not run.ledger.training:
        notes.append("The ledger was written before the first step, but the run continued.")
        return None
    ledger, last = copy.deepcopy(run.ledger), run.ledger.training[-1]
    record(ledger, dataclasses.replace(last, steps=run.done - ledger.steps))
    notes.append(
        f"The ledger was last written after {run.ledger.steps} steps, but the run continued to "
        f"step {run.done} at least. These steps are counted, too."
    )
    return ledger


def _epsilon(run: RunSnapshot, notes: list[str]) -> float | None:
    """Epsilon by the ledger; None without one."""
    if run.ledger is None or run.delta is None:
        lines = [run.summary, run.end, *reversed(run.evaluations), *reversed(run.steps)]
        written = number(first(*(line.get("epsilon") for line in lines)))
        if written is not None:
            missing = "ledger.json" if run.ledger is None else "delta"
            notes.append(
                f"The run wrote epsilon {written:.4g}, which is not shown as a guarantee: without "
                f"{missing}, nothing proves it. Restore it from a copy."
            )
        return None
    spent = price(run.ledger, run.delta)
    final = number(first(run.summary.get("epsilon"), run.end.get("epsilon")))
    if final is not None and not math.isclose(spent, final, rel_tol=1e-3):
        notes.append(
            f"The run wrote epsilon {final:.4g}, but its ledger costs {spent:.4g}, which is shown."
        )
    return spent
