"""From a recipe and its records to a private run: device, model, optimizer, `make_private`.

Guarantees: with a seed, initial weights and dropout are functions of it; without one they are
random; the state of torch's global generator is restored.  `delta` None becomes 1 / (10 * records).
The learning rate follows its schedule in every step, including steps on empty batches.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from psac import sampling
from psac.app import models
from psac.app.models.copies import with_copies
from psac.app.training import own_model
from psac.app.training.optimization import optimizer_for, set_learning_rate
from psac.app.training.recipe import Recipe
from psac.app.training.splits import Splits
from psac.private import Private, make_private


def device_of(recipe: Recipe) -> torch.device:
    """The device that the recipe names; 'auto' is a GPU if there is one."""
    if recipe.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=recipe.device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device '{recipe.device}' is not available here ({str(error).splitlines()[0]}). "
            "Use 'auto' or 'cpu'."
        ) from error


def model_of(recipe: Recipe, splits: Splits, source: Path | None = None) -> nn.Module:
    """A new model on the device of the records; `source` is the file of your own network."""
    with seeded(recipe.seed):
        model = network(
            recipe.model,
            source,
            input_shape=splits.input_shape,
            classes=len(splits.classes),
            settings=recipe.model_settings,
        )
    model = with_copies(model, copies=recipe.copies, shift=recipe.shift)
    return model.to(splits.training.labels.device)


def network(
    model: str,
    source: Path | None,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    settings: Mapping[str, Any],
) -> nn.Module:
    """The built-in network of this name, or the one that your own function returns."""
    if not own_model.is_own(model):
        return models.build(model, input_shape=input_shape, classes=classes, **settings)
    file = own_model.parts(model)[0] if source is None else source
    return own_model.build(model, file, input_shape=input_shape, classes=classes, settings=settings)


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device | None = None) -> Iterator[None]:
    """Seeds torch's global generator within, randomly for None, and restores it afterwards."""
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)
        yield


def seed_of_training(recipe: Recipe) -> int | None:
    """The seed for dropout and the like, which must differ from that of the initial weights."""
    if recipe.seed is None:
        return None
    text = f"psac training {recipe.seed}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def private_of(recipe: Recipe, splits: Splits, model: nn.Module) -> Private:
    """The private run of this model on the training records."""
    optimizer = optimizer_for(
        model,
        recipe.optimizer,
        learning_rate=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    num_records = len(splits.training)
    _check_batch_size(recipe, num_records)
    return make_private(
        model,
        optimizer,
        splits.training.loader(recipe.batch_size),
        batch_size=recipe.batch_size,
        epochs=recipe.epochs,
        epsilon=recipe.epsilon,
        noise_multiplier=recipe.noise_multiplier,
        delta=1 / (10 * num_records) if recipe.delta is None else recipe.delta,
        clipping=recipe.clipping(),
        sampling=sampling.get(recipe.sampling),
        physical_batch_size=recipe.physical_batch_size,
        lengths=splits.training.lengths,
        seed=recipe.seed,
    )


def autocast(recipe: Recipe, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The precision that losses and their gradients are computed in; sums stay in float32."""
    if recipe.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, recipe.precision))


def _check_batch_size(recipe: Recipe, num_records: int) -> None:
    if recipe.batch_size > num_records:
        raise ValueError(
            f"batch_size is {recipe.batch_size}, but '{recipe.data}' has {num_records} records to "
            "train on. Use a smaller one."
        )


def follow_schedule(recipe: Recipe, private: Private) -> None:
    """Applies the learning rate schedule now and after every step."""

    def set_rate(*_: Any) -> None:
        # Lost steps count, too, so that the schedule ends where it should.
        progress = private.ledger.steps / private.planned_steps
        set_learning_rate(private.optimizer, recipe.schedule, recipe.learning_rate, progress)

    set_rate()
    private.optimizer.register_step_post_hook(set_rate)
