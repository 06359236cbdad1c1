"""What a finished run leaves: the model, its surest mistakes, a summary.

Guarantees: mistakes are listed of public test records only; a summary of records that were held out
of the training data says `"private": false`; epsilon is that of the ledger, and `secure` says
whether it is a guarantee at all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from psac.gradients.check import ISOLATION
from psac.private import Private
from psac.training.evaluation import Evaluation, SeveralLabels
from psac.training.recipe import Recipe
from psac.training.run import Run, write_json
from psac.training.splits import Splits

MISTAKES = 48
LARGEST_IMAGE = 64


# How records were kept apart, by the way in which the loss function was evaluated.
def summary_of(
    splits: Splits,
    private: Private,
    evaluation: Evaluation | SeveralLabels,
    epsilon: float,
    seconds: float,
    way: str | None,
) -> dict[str, Any]:
    """For summary.json.  `way` is that of the last batch, if any batch was not empty."""
    plan = private.plan
    return {
        "accuracy": evaluation.accuracy,
        "constant_accuracy": evaluation.constant_accuracy,
        "loss": evaluation.loss,
        "split": splits.split,
        **splits.mark(),
        "epsilon": epsilon,
        "delta": plan.delta,
        "secure": private.ledger.secure,
        "isolation": ISOLATION.get(way or ""),
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
    """The weights, with what is needed to build the model and what they cost."""
    how = {
        "model": recipe.model,
        "model_settings": recipe.model_settings,
        "copies": recipe.copies,
        "shift": recipe.shift,
        "input_shape": list(splits.input_shape),
        "classes": list(splits.classes),
        "columns": None
        if splits.columns is None
        else {name: column.to_json() for name, column in splits.columns.items()},
        "several_labels": splits.training.labels.ndim == 2,
    }
    run.write_model(model, how | {key: summary[key] for key in ("epsilon", "delta", "secure")})


def write_mistakes(run: Run, splits: Splits, evaluation: Evaluation | SeveralLabels) -> None:
    if splits.public:
        mistakes = [
            mistake | pixels_of(splits.evaluation.inputs[mistake["index"]])
            for mistake in evaluation.mistakes(MISTAKES)
        ]
        write_json(run.predictions_path, {"split": splits.split, "mistakes": mistakes})


def pixels_of(image: Tensor) -> dict[str, Any]:
    """A small image as rows of values in 0..255, or nothing if it is none."""
    if image.dim() != 3 or image.shape[0] not in (1, 3) or max(image.shape) > LARGEST_IMAGE:
        return {}
    values = image if image.dtype == torch.uint8 else (255 * image.float()).round()
    rows = values.clamp(0, 255).to(torch.int64).permute(1, 2, 0)
    return {"pixels": (rows.squeeze(2) if image.shape[0] == 1 else rows).tolist()}
