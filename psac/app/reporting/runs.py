"""A run folder, read as it is: finished, cut off in the middle, or damaged in part.

    recipe.toml        the settings
    environment.json   command, versions, platform, date
    metrics.jsonl      one object a line, of kind start, step, evaluation or end
    ledger.json        what was released (`psac.Ledger.to_json`)
    summary.json       accuracy, confusion matrix and the like, when the run is done
    predictions.json   mistakes on public test records

Guarantees: what can be read is read, and `notes` says what could not; a line that was cut off by a
kill is left out.  Epsilon is that of the ledger, priced anew; without a ledger there is none, as
nothing proves what the run wrote of it.  `Run.published` is made of what is listed here and nothing
else, so that no later step can show the rest: settings, public constants, what noise protects, and
results whose lines say `"public": true`.  A line that says nothing is private.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from psac.accounting import Entry, Ledger, pricing
from psac.app import data

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

KINDS = ("start", "step", "evaluation", "warning", "end")
SEE_OWNER = "psac warned about privacy during this run; the owner's page says of what."
ESSENTIAL = ("recipe.toml", "metrics.jsonl", "summary.json")  # a run has one of them at least
# What follows from released values and public constants alone.
PUBLIC_STEP = ("kind", "step", "epoch", "split", "public", "private", "epsilon", "scale")
PUBLIC_SUMMARY = ("epsilon", "delta", "steps", "split", "public", "private")
PUBLIC_START = (
    *("kind", "step", "planned_steps", "num_records", "expected_batch_size", "noise_multiplier"),
    *("delta", "planned_epsilon", "sampling", "relation", "rule", "secure", "resumed"),
)
PUBLIC_ENVIRONMENT = (
    *("date", "versions", "platform", "cpu_count", "threads", "device", "seed", "secure"),
)
PUBLIC_SETTINGS = (
    *("validation_fraction", "test_is_public", "most_frequent_share", "model_settings"),
    *("rule", "r", "bound", "scale", "epsilon", "noise_multiplier", "delta", "sampling"),
    *("batch_size", "epochs", "copies", "shift", "physical_batch_size", "optimizer"),
    *("learning_rate", "momentum", "weight_decay", "schedule", "seed", "device"),
)
OF_NAMED_DATA = ("data_settings",)  # of the user's own, they may hold values of records
RESULTS = ("accuracy", "constant_accuracy", "loss", "per_class_accuracy", "confusion_matrix")


class NoRun(ValueError):
    """The folder does not hold a run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What a folder says.  All but `epsilon` is as it was read; None or empty is not there."""

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
    warned: tuple[str, ...]  # in full, for the owner; what may be published is in the ledger
    ledger: Ledger | None
    epsilon: float | None
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        return bool(self.end or self.summary)

    @property
    def secure(self) -> bool | None:
        """Whether all noise came from a secure generator; None if nothing says so."""
        if self.ledger is not None:
            return self.ledger.secure
        return first(self.start.get("secure"), self.environment.get("secure"))

    @property
    def delta(self) -> float | None:
        found = (self.start, self.summary, self.recipe)
        return number(first(*(source.get("delta") for source in found)))

    @property
    def done(self) -> int:
        """Logical steps of which something is known."""
        last = [line.get("step", 0) for line in (*self.steps, *self.evaluations, self.end)]
        return max([int(self.summary.get("steps", 0)), *last])

    @property
    def planned(self) -> int | None:
        return self.start.get("planned_steps")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What psac warned of, in sentences that may be published."""
        return self.ledger.warnings if self.ledger is not None else ()

    @property
    def is_proved(self) -> bool:
        """Whether the ledger's epsilon holds for the run without an if."""
        finite = self.epsilon is not None and math.isfinite(self.epsilon)
        tested = self.ledger is not None and "batched" in self.ledger.isolation
        return finite and self.secure is True and not (self.warnings or self.warned or tested)

    @property
    def on_named_data(self) -> bool:
        return self.recipe.get("data") in data.names()

    @property
    def is_evaluated(self) -> bool:
        return bool(self.evaluations or self.summary)

    @property
    def on_public_records(self) -> bool:
        """Whether somebody called the records public that the model was evaluated on."""
        lines = [line for line in (*self.evaluations, self.end, self.summary) if line]
        held_out = bool(self.recipe.get("validation_fraction"))
        return bool(lines) and not held_out and all(map(_is_public, lines))

    @property
    def on_private_records(self) -> bool:
        """Whether nobody did: the results are for the owner of the data."""
        return self.is_evaluated and not self.on_public_records

    @property
    def held_out(self) -> bool:
        """Whether they are a part of the training records."""
        splits = {line.get("split") for line in (*self.evaluations, self.summary)}
        return "validation" in splits or bool(self.recipe.get("validation_fraction"))

    @property
    def accuracy(self) -> float | None:
        """Of the last evaluation that there is."""
        last = self.evaluations[-1:]
        found = [source.get("accuracy") for source in (self.summary, self.end, *last)]
        return number(first(*found))

    @property
    def seconds(self) -> float | None:
        lines = [self.summary, self.end, *self.steps[-1:]]
        return number(first(*(line.get("seconds") for line in lines)))

    @property
    def title(self) -> str:
        model, where = self.recipe.get("model"), self.recipe.get("data")
        return f"{_name(model)} on {_name(where)}" if model and where else self.name

    def published(self) -> Run:
        """A run of what may be shown to anyone, and of nothing else."""
        shown = self.on_public_records
        results = RESULTS if shown else ()
        names = ("classes",) if shown and self.summary.get("unsafe") == [] else ()
        return Run(
            name=self.name,
            recipe=self._published_recipe(),
            environment=self._published_environment(),
            start=_only(self.start, PUBLIC_START),
            resumed=self.resumed,
            steps=tuple(_only(line, PUBLIC_STEP) for line in self.steps),
            evaluations=tuple(_only(line, (*PUBLIC_STEP, *results)) for line in self.evaluations),
            end=_only(self.end, (*PUBLIC_STEP, *results)),
            summary=_only(self.summary, (*PUBLIC_SUMMARY, *results, *names)),
            mistakes=self.mistakes if shown and self.mistakes_are_public else (),
            mistakes_are_public=shown and self.mistakes_are_public,
            warned=(SEE_OWNER,) if self.warned and not self.warnings else (),
            ledger=self.ledger,
            epsilon=self.epsilon,
            notes=tuple(
                re.sub(r"(cannot be read):.*", r"\1.", note, flags=re.S) for note in self.notes
            ),
        )

    def _published_recipe(self) -> dict[str, Any]:
        named = {key: _name(self.recipe[key]) for key in ("data", "model") if key in self.recipe}
        own = () if not self.on_named_data else OF_NAMED_DATA
        return named | _only(self.recipe, (*PUBLIC_SETTINGS, *own))

    def _published_environment(self) -> dict[str, Any]:
        resumed = self.environment.get("resumed")
        dates = [_only(each, ("date",)) for each in resumed] if isinstance(resumed, list) else []
        typed = ("command",) if self.on_named_data and "data_root" not in self.recipe else ()
        return _only(self.environment, (*PUBLIC_ENVIRONMENT, *typed)) | {"resumed": dates}


def _is_public(line: Mapping[str, Any]) -> bool:
    return line.get("public") is True and line.get("private") is not False


def _name(path: Any) -> str:
    """Of a file, without its folders."""
    return Path(str(path)).name


def first(*values: Any) -> Any:
    """The first that is not None."""
    return next((value for value in values if value is not None), None)


def number(value: Any) -> float | None:
    """The value if it is a finite number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def _only(line: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: line[key] for key in keys if key in line}


def read(folder: Path) -> Run:
    """The run in the folder; `NoRun` if there is none."""
    _refuse(folder)
    notes: list[str] = []
    late: list[str] = []  # about files that only a finished run has
    lines = _lines(folder / "metrics.jsonl", notes)
    kinds = {kind: _of(lines, kind) for kind in KINDS}
    mistakes, public = _mistakes(folder / "predictions.json", late)
    run = Run(
        name=folder.resolve().name,
        recipe=_load(folder / "recipe.toml", tomllib.loads, notes) or {},
        environment=_load(folder / "environment.json", json.loads, notes) or {},
        start=kinds["start"][-1] if kinds["start"] else {},
        resumed=sum(bool(line.get("resumed")) for line in kinds["start"]),
        steps=kinds["step"],
        evaluations=kinds["evaluation"],
        end=kinds["end"][-1] if kinds["end"] else {},
        summary=_load(folder / "summary.json", json.loads, late) or {},
        mistakes=mistakes,
        mistakes_are_public=public,
        warned=tuple(dict.fromkeys(str(line.get("text")) for line in kinds["warning"])),
        ledger=_load(folder / "ledger.json", _ledger, notes),
        epsilon=None,
        notes=(),
    )
    notes += late if run.finished and run.on_public_records else []
    run = dataclasses.replace(run, ledger=_caught_up(run, notes))
    epsilon = _epsilon(run, notes)
    if epsilon is None:  # what the lines say of it is as little proved
        steps, evaluations = _unpriced(run.steps), _unpriced(run.evaluations)
        run = dataclasses.replace(run, steps=steps, evaluations=evaluations)
    return dataclasses.replace(run, epsilon=epsilon, notes=tuple(notes))


def _unpriced(lines: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    return tuple(_only(line, line.keys() - {"epsilon"}) for line in lines)


def _refuse(folder: Path) -> None:
    """Says what was looked for in a folder that is no run."""
    sought = ", ".join(ESSENTIAL)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise NoRun(f"'{folder}' {what}. Pass the folder of a run, which holds {sought}.")
    if any((folder / name).is_file() for name in ESSENTIAL):
        return
    inside = sorted(path.name for path in folder.iterdir())
    runs = [name for name in inside if any((folder / name / file).is_file() for file in ESSENTIAL)]
    held = f"It holds {', '.join(inside[:8])}{', ...' if len(inside) > 8 else ''}."
    hint = f" These of its folders are runs, pass them: {', '.join(runs)}." if runs else ""
    raise NoRun(
        f"'{folder}' is no run: none of {sought} is in it. {held if inside else 'It is empty.'}"
        f"{hint or ' Pass a folder that a training run wrote.'}"
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


def _lines(path: Path, notes: list[str]) -> list[Mapping[str, Any]]:
    text: str = _load(path, str, notes) or ""
    good, bad = [], []
    for place, line in enumerate(text.splitlines(), start=1):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        (good if isinstance(value, dict) else bad).append((place, value))
    if bad:
        places = ", ".join(str(place) for place, _ in bad[:5])
        what = "a damaged line was" if len(bad) == 1 else f"{len(bad)} damaged lines were"
        notes.append(f"metrics.jsonl: {what} left out (line {places}).")
    return [value for _, value in good]


def _of(lines: list[Mapping[str, Any]], kind: str) -> tuple[Mapping[str, Any], ...]:
    found = [line for line in lines if line.get("kind") == kind]
    return tuple(sorted(found, key=lambda line: line.get("step", 0)))


def _mistakes(path: Path, notes: list[str]) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """Wrong predictions, and whether they are of public records."""
    content = _load(path, json.loads, notes)
    if not isinstance(content, dict) or not isinstance(content.get("mistakes"), list):
        return (), False
    rows = [row for row in content["mistakes"] if isinstance(row, dict)]
    wrong = (row for row in rows if row.get("label") != row.get("prediction"))
    return tuple(wrong), _is_public(content)


def _caught_up(run: Run, notes: list[str]) -> Ledger | None:
    """The ledger with the steps that the run took after it was last written."""
    if run.ledger is None or run.done <= run.ledger.steps:
        return run.ledger
    if not run.ledger.training:
        notes.append("The ledger was written before the first step, and the run went on.")
        return None
    ledger, last = copy.deepcopy(run.ledger), run.ledger.training[-1]
    record(ledger, dataclasses.replace(last, steps=run.done - ledger.steps))
    notes.append(
        f"The ledger was last written after {run.ledger.steps} steps, and the run went on to "
        f"{run.done} at least: these are counted, too."
    )
    return ledger


def _epsilon(run: Run, notes: list[str]) -> float | None:
    """What was spent, by the ledger; unknown without one."""
    if run.ledger is None or run.delta is None:
        lines = [run.summary, run.end, *reversed(run.evaluations), *reversed(run.steps)]
        written = number(first(*(line.get("epsilon") for line in lines)))
        if written is not None:
            lacking = "ledger.json" if run.ledger is None else "delta"
            notes.append(
                f"The run wrote epsilon {written:.4g}, which is not shown as a guarantee: without "
                f"{lacking}, nothing proves it. Restore it from a copy."
            )
        return None
    spent = price(run.ledger, run.delta)
    final = number(first(run.summary.get("epsilon"), run.end.get("epsilon")))
    if final is not None and not math.isclose(spent, final, rel_tol=1e-3):
        notes.append(
            f"The run wrote epsilon {final:.4g}; its ledger prices {spent:.4g}, which counts."
        )
    return spent


def record(ledger: Ledger, entry: Entry) -> None:
    """Writes an entry of one ledger into another."""
    fields: dict[str, Any] = dataclasses.asdict(entry)
    ledger.record(**fields)


def price(ledger: Ledger, delta: float, *, quick: bool = False) -> float:
    """Epsilon without the warnings: the page says what they say.

    `quick` is for what stands beside it: on a coarser lattice, without the second opinion of
    dp-accounting.  That is an upper bound as well, larger in the fifth digit.
    """
    return _price(ledger.entries, delta, quick)


@functools.lru_cache(maxsize=256)  # runs that differ in their seed have equal ledgers
def _price(entries: tuple[Entry, ...], delta: float, quick: bool) -> float:
    coarseness = 8.0 if quick else 1.0
    return pricing.price(entries, delta, "pld", coarseness=coarseness, first_look=quick)
