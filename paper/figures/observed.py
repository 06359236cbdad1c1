"""A private run that is measured as it goes: what the figures about training are made of.

    run = observed(recipe, load_splits(recipe), checkpoint, measure=cosines, every=10)

Training is that of `psac.make_private`; before every `every`-th step, `measure(model, inputs,
labels, noise)` sees a copy of the model and the whole batch that the step is about to use, and the
noise multiplier.  What it returns is kept with the step.

Guarantees: measuring changes nothing of the run; a run that was stopped goes on from its checkpoint
and ends as if it had not been; the checkpoint is removed when the run is done.  What is measured is
computed from the data without noise: it is NOT private, and the data of the figures are public.
"""

from __future__ import annotations

import copy
import dataclasses
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from psac.app.training.assembly import model_of, private_of
from psac.app.training.evaluation import evaluate, loss_of
from psac.app.training.recipe import Recipe
from psac.app.training.splits import Splits
from psac.checkpoint.saving import journal_of, load_checkpoint, save_checkpoint
from psac.noise.generators import InsecureNoiseWarning
from psac.private import Private

Measure = Callable[[nn.Module, Tensor, Tensor, float], dict[str, Any]]
SAVE_SECONDS = 30.0


def observed(
    recipe: Recipe,
    splits: Splits,
    checkpoint: Path,
    *,
    measure: Measure | None = None,
    every: int = 1,
) -> dict[str, Any]:
    """What was measured, and the run's accuracy on the test records."""
    private = started(whole_batches(recipe), splits)
    measurements: list[dict[str, Any]] = []
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        measurements = load_checkpoint(checkpoint, private)["found"]
    try:
        _train(private, measurements, checkpoint, measure, every)
        accuracy = evaluate(
            private.model, splits.evaluation, classes=len(splits.classes), batch_size=1024
        ).accuracy
    finally:
        private.close()
    checkpoint.unlink(missing_ok=True)
    journal_of(checkpoint).unlink(missing_ok=True)
    return {
        "noise_multiplier": private.noise_multiplier,
        "steps": private.planned_steps,
        "accuracy": accuracy,
        "measured": measurements,
    }


def _train(
    private: Private,
    measurements: list[dict[str, Any]],
    checkpoint: Path,
    measure: Measure | None,
    every: int,
) -> None:
    saved = time.monotonic()
    while private.steps_taken < private.planned_steps:
        for inputs, labels in private.loader:
            step = private.steps_taken + 1
            if measure and step % every == 0:
                model = copy.deepcopy(private.model)
                seen = measure(model, inputs, labels, private.noise_multiplier)
                measurements.append({"step": step, **seen})
            private.step(loss_of, (inputs, labels))
            if time.monotonic() - saved > SAVE_SECONDS:
                save_checkpoint(checkpoint, private, extra={"found": measurements})
                saved = time.monotonic()


def whole_batches(recipe: Recipe) -> Recipe:
    """With physical batches so large that a Poisson draw is never cut in two."""
    return dataclasses.replace(recipe, physical_batch_size=4 * recipe.batch_size)


def calibrated(recipe: Recipe, splits: Splits) -> Recipe:
    """With the noise of its budget as a number, so that many runs need not look for it again."""
    private = started(recipe, splits)
    private.close()
    noise = private.noise_multiplier
    return dataclasses.replace(recipe, epsilon=None, noise_multiplier=noise)


def started(recipe: Recipe, splits: Splits) -> Private:
    """The private run of a recipe with a seed, which needs no warning: its data are public."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)
        return private_of(recipe, splits, model_of(recipe, splits))
