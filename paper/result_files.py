"""The result of a run as one small file, to be committed: what was asked for, and what came out.

    results/table2/fashion-mnist/psac-lr4-seed0.json

Guarantees: it holds the whole recipe but for the folders of data and weights, versions, epsilon,
the accuracy after every epoch and, if the rule learns a scale, the last one; nothing of the machine
but its platform; all of it comes from the run's own folder. These runs are seeded, hence repeatable
and NOT private: the data are public.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from psac.app.training import Recipe, Run
from psac.app.training.recipe import ADAPTIVE
from psac.app.training.run import read_json, write_json

FROM_SUMMARY = (
    *("accuracy", "split", "epsilon", "delta", "secure", "noise_multiplier", "steps"),
    *("num_records", "sampling", "relation", "seconds"),
)
FROM_ENVIRONMENT = ("versions", "platform", "threads", "device")


def name_of(recipe: Recipe) -> str:
    """Unique among the runs of a row."""
    part = "tuning-" if recipe.validation_fraction else ""
    return f"{part}{recipe.rule}-lr{recipe.learning_rate:g}-seed{recipe.seed}"


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Those that have a value."""
    settings = dataclasses.asdict(recipe)
    return {key: value for key, value in settings.items() if value is not None and value != {}}


def without_folders(recipe: Recipe) -> Recipe:
    """The recipe without the places of its files, which are no part of a result."""
    settings = {key: value for key, value in recipe.model_settings.items() if key != "weights"}
    return dataclasses.replace(recipe, data_root=None, model_settings=settings)


def write_result(run: Run, path: Path) -> None:
    """The file of a finished run."""
    summary, environment = run.summary(), read_json(run.environment_path)
    lines = run.metrics()
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    learns = run.recipe().rule == ADAPTIVE  # others have a scale that they were given
    scales = [line["scale"] for line in lines if learns and line.get("scale") is not None]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "recipe": settings_of(without_folders(run.recipe())),
            **{key: summary[key] for key in FROM_SUMMARY},
            **{key: environment[key] for key in FROM_ENVIRONMENT},
            "resumed": len(environment["resumed"]),
            **({"last_scale": scales[-1]} if scales else {}),
            **{key: summary[key] for key in ("constant_accuracy",) if key in summary},
            "accuracy_by_epoch": [[line["epoch"], line["accuracy"]] for line in evaluations],
        },
    )


def read_result(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """The result of this recipe, or None if there is none yet."""
    if not path.exists():
        return None
    result = read_json(path)
    made, wanted = Recipe.from_settings(result["recipe"]), without_folders(recipe)
    if made != wanted:
        difference = "; ".join(made.differences(wanted))
        raise ValueError(
            f"{path} is the result of another recipe ({difference}). Remove it to have the run "
            "made anew, together with its run folder."
        )
    return result
