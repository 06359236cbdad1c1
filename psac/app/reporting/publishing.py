"""What of a run may be published: a list of what is allowed, and nothing else.

`files_to_publish` names the files of a run folder that hold nothing of a private record.

Guarantees: `published` keeps settings, public constants, what noise protects, and results whose
lines say `"public": true`.  Whatever is not listed here is left out, so that no later step can show
it.  A line that says nothing about itself is private.  Of a path, only the last name is kept.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from psac.app.reporting.snapshot import RunSnapshot, read
from psac.app.text.classifier import FOLDERS
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
    *("learning_rate", "momentum", "weight_decay", "schedule", "precision", "seed", "device"),
)
OF_NAMED_DATA = ("data_settings",)  # those of your own data may hold values of records
RESULTS = ("accuracy", "constant_accuracy", "loss", "per_class_accuracy", "confusion_matrix")


# What noise protects, or says only what was released.  The recipe and the environment name folders.
ALWAYS = ("ledger.json", "model.safetensors", "released.json")
OF_PUBLIC_RECORDS = ("predictions.json", "summary.json")


def files_to_publish(folder: Path) -> list[str]:
    """The files of the run that may be published with its page; the others stay with the data."""
    names = [*ALWAYS, *(OF_PUBLIC_RECORDS if read(folder).on_public_records else ())]
    return [name for name in names if (folder / name).is_file()]


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
    recipe = named | _only(run.recipe, allowed)
    settings = _table(recipe, "model_settings")
    hidden = dict.fromkeys(settings.keys() & set(FOLDERS), "a folder")
    return {**recipe, "model_settings": {**settings, **hidden}} if hidden else recipe


def _table(recipe: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = recipe.get(name)
    return value if isinstance(value, Mapping) else {}


def _environment(run: RunSnapshot) -> dict[str, Any]:
    resumed = run.environment.get("resumed")
    dates = [_only(each, ("date",)) for each in resumed] if isinstance(resumed, list) else []
    kept = _only(run.environment, ENVIRONMENT) | {"resumed": dates}
    command = run.environment.get("command")
    if isinstance(command, str) and run.on_named_data and "data_root" not in run.recipe:
        kept["command"] = _without_folders(command)
    return kept


def _without_folders(command: str) -> str:
    """The command with only the last names of paths that start elsewhere: folders may name people.

    >>> _without_folders("psac train mnist --run '/home/jane doe/first' --data-settings=~/x/y.toml")
    'psac train mnist --run first --data-settings=y.toml'
    """
    try:
        words = shlex.split(command)
    except ValueError:  # an unclosed quotation mark: nothing is known about its paths
        return ""
    elsewhere = re.compile(r"([-\w]*=)?(?:/|~|\.\.|\w:[\\/]).*[\\/](.*)", re.S)
    return shlex.join([elsewhere.sub(lambda m: (m[1] or "") + m[2], word) for word in words])


def _only(line: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: line[key] for key in keys if key in line}
