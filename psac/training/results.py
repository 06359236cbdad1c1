"""What a finished run leaves: the model, its surest mistakes, a summary.

Guarantees: mistakes are listed of public test records only; a summary of records that were held out
of the training data says `"private": false`; epsilon is that of the ledger, and `secure` says
whether it is a guarantee at all.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from psac.private import Private
from psac.training.evaluation import Evaluation
from psac.training.recipe import Recipe
from psac.training.run import Run, write_json
from psac.training.splits import Splits

MISTAKES = 48


def summary_of(
    splits: Splits, private: Private, evaluation: Evaluation, epsilon: float, seconds: float
) -> dict[str, Any]:
    """For summary.json."""
    plan = private.plan
    return {
        "accuracy": evaluation.accuracy,
        "loss": evaluation.loss,
        "split": splits.split,
        **splits.mark(),
        "epsilon": epsilon,
        "delta": plan.delta,
        "secure": private.ledger.secure,
        "steps": private.step,
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
        "input_shape": list(splits.input_shape),
        "classes": list(splits.classes),
    }
    run.write_model(model, how | {key: summary[key] for key in ("epsilon", "delta", "secure")})


def write_mistakes(run: Run, splits: Splits, evaluation: Evaluation) -> None:
    if splits.public:
        mistakes = evaluation.mistakes(MISTAKES)
        write_json(run.predictions_path, {"split": splits.split, "mistakes": mistakes})
