"""The results of a finished run: the model, its most confident mistakes, a summary.

Guarantees: mistakes are listed for public test records only; a summary says `"public": true` if its
results are on public records, and otherwise `"private": false`; the share of the most frequent
class is counted on public records or taken from the recipe, never counted on private records;
epsilon is that of the ledger, next to the warnings of psac and whether the noise was secure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from psac.app.text.classifier import FOLDERS, TextClassifier, save_files
from psac.app.training.evaluation import Evaluation, SeveralLabels
from psac.app.training.in_memory import Records, TokenRecords
from psac.app.training.recipe import Recipe
from psac.app.training.run import Run, write_json
from psac.app.training.splits import Splits
from psac.private import Private

MISTAKES = 48
LARGEST_IMAGE = 64


def summary_of(
    recipe: Recipe,
    splits: Splits,
    private: Private,
    evaluation: Evaluation | SeveralLabels,
    epsilon: float,
    seconds: float,
) -> dict[str, Any]:
    """The content of summary.json."""
    plan, ledger = private.plan, private.ledger
    constant = evaluation.constant_accuracy if splits.public else recipe.most_frequent_share
    return {
        "accuracy": evaluation.accuracy,
        "constant_accuracy": constant,
        "loss": evaluation.loss,
        "split": splits.split,
        **splits.mark(),
        "epsilon": epsilon,
        "delta": plan.delta,
        "secure": ledger.secure,
        "isolation": ledger.isolation_statement,
        "warnings": list(ledger.warnings),
        "unsafe": list(splits.unsafe),
        "steps": private.steps_taken,
        "planned_steps": plan.steps,
        "num_records": plan.num_records,
        "expected_batch_size": plan.expected_batch_size,
        "noise_multiplier": plan.noise_multiplier,
        "sampling": plan.sampling.name,
        "relation": plan.sampling.relation,
        "rule": repr(private.clipping),
        "seconds": seconds,
        "classes": list(splits.classes),
        "per_class_accuracy": evaluation.per_class_accuracy(),
        "confusion_matrix": evaluation.confusion(),
    }


def write_model(
    run: Run, recipe: Recipe, splits: Splits, model: nn.Module, summary: dict[str, Any]
) -> None:
    """Writes the weights, with what is needed to build the model and what it cost."""
    how = {
        "model": Path(recipe.model).name,  # of your own network, without its folder
        "model_settings": {k: v for k, v in recipe.model_settings.items() if k not in FOLDERS}
        if isinstance(model, TextClassifier)
        else recipe.model_settings,
        "copies": recipe.copies,
        "shift": recipe.shift,
        "input_shape": list(splits.input_shape),
        "classes": list(splits.classes),
        "columns": None
        if splits.columns is None
        else {name: column.to_json() for name, column in splits.columns.items()},
        "several_labels": splits.training.labels.ndim == 2,
        "texts": text_columns(recipe, splits),
    }
    cost = ("epsilon", "delta", "secure", "warnings")
    if isinstance(model, TextClassifier):
        save_files(model, run.text_path)
        model = model.merged()
    run.write_model(model, how | {key: summary[key] for key in cost})


def text_columns(recipe: Recipe, splits: Splits) -> list[str] | None:
    """The columns of new records that hold their texts; None if the model takes no text."""
    if not isinstance(splits.training, TokenRecords):
        return None
    column = recipe.data_settings.get("text", "text")
    return [column, "text_pair"] if splits.training.pairs else [column]


def write_mistakes(run: Run, splits: Splits, evaluation: Evaluation | SeveralLabels) -> None:
    if splits.public:
        mistakes = [
            mistake | shown(splits.evaluation, mistake["record"] - 1)
            for mistake in evaluation.mistakes(MISTAKES)
        ]
        content = {"split": splits.split, **splits.mark(), "mistakes": mistakes}
        write_json(run.predictions_path, content)


def shown(records: Records, number: int) -> dict[str, Any]:
    """The text of a record or its small image, for a page; empty for other inputs."""
    if isinstance(records, TokenRecords):
        return {"text": records.texts[number]}
    return pixels_of(records.inputs[number])


def pixels_of(image: Tensor) -> dict[str, Any]:
    """A small image as rows of values in 0..255; empty for other inputs."""
    if image.dim() != 3 or image.shape[0] not in (1, 3) or max(image.shape) > LARGEST_IMAGE:
        return {}
    values = image if image.dtype == torch.uint8 else (255 * image.float()).round()
    rows = values.clamp(0, 255).to(torch.int64).permute(1, 2, 0)
    return {"pixels": (rows.squeeze(2) if image.shape[0] == 1 else rows).tolist()}
