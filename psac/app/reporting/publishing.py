"""What of a run may be published: a list of what is allowed, and nothing else.

Guarantees: `published` keeps settings, public constants, what noise protects, and results whose
lines say `"public": true`.  Whatever is not listed here is left out, so that no later step can show
it.  A line that says nothing about itself is private.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from psac.app.reporting.snapshot import RunSnapshot
from psac.app.training.privacy_warnings import SEE_OWNER

# What follows from released values and public constants only.
STEP = ("kind", "step", "epoch", "split", "public", "private", "epsilon", "scale")
SUMMARY = ("epsilon", "delta", "steps", "split", "public", "private")
START = (
    *("kind", "step", "planned_steps", "num_records", "expected_batch_size", "noise_multiplier"),
    *("delta", "planned_epsilon", "sampling", "relation", "rule", "secure", "resumed"),
)
ENVIRONMENT = (
    *("date", "versions", "platform", "cpu_count", "threads", "device", "seed", "secure"),
)
SETTINGS = (
    *("validation_fraction", "test_is_public", "most_frequent_share", "model_settings"),
    *("rule", "r", "bound", "scale", "epsilon", "noise_multiplier", "delta", "sampling"),
    *("batch_size", "epochs", "copies", "shift", "physical_batch_size", "optimizer"),
    *("learning_rate", "momentum", "weight_decay", "schedule", "seed", "device"),
)
OF_NAMED_DATA = ("data_settings",)  # those of your own data may hold values of records
RESULTS = ("accuracy", "constant_accuracy", "loss", "per_class_accuracy", "confusion_matrix")


def published(run: RunSnapshot) -> RunSnapshot:
    """The run with what may be shown to anyone."""
    public = run.on_public_records
    results = RESULTS if public else ()
    names = ("classes",) if public and run.summary.get("unsafe") == [] else ()
    return RunSnapshot(
        name=run.name,
        recipe=_recipe(run),
        environment=_environment(run),
        start=_only(run.start, START),
        resumed=run.resumed,
        steps=tuple(_only(line, STEP) for line in run.steps),
        evaluations=tuple(_only(line, (*STEP, *results)) for line in run.evaluations),
        end=_only(run.end, (*STEP, *results)),
        summary=_only(run.summary, (*SUMMARY, *results, *names)),
        mistakes=run.mistakes if public and run.mistakes_are_public else (),
        mistakes_are_public=public and run.mistakes_are_public,
        warned=(SEE_OWNER,) if run.warned and not run.warnings else (),
        ledger=run.ledger,
        epsilon=run.epsilon,
        notes=tuple(re.sub(r"(cannot be read):.*", r"\1.", note, flags=re.S) for note in run.notes),
    )


def _recipe(run: RunSnapshot) -> dict[str, Any]:
    named = {key: Path(str(run.recipe[key])).name for key in ("data", "model") if key in run.recipe}
    allowed = (*SETTINGS, *OF_NAMED_DATA) if run.on_named_data else SETTINGS
    return named | _only(run.recipe, allowed)


def _environment(run: RunSnapshot) -> dict[str, Any]:
    resumed = run.environment.get("resumed")
    dates = [_only(each, ("date",)) for each in resumed] if isinstance(resumed, list) else []
    typed = ("command",) if run.on_named_data and "data_root" not in run.recipe else ()
    return _only(run.environment, (*ENVIRONMENT, *typed)) | {"resumed": dates}


def _only(line: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: line[key] for key in keys if key in line}
