"""What the engine refuses, and why."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor, nn


class PrivacyError(RuntimeError):
    """Going on would not be private, or could not be shown to be; nothing was released."""


class NotIsolated(PrivacyError):
    """A sample's gradient depends on other samples of the batch."""


class OutsideTheTape(PrivacyError):
    """A gradient reached a private parameter by a way that the engine does not see."""


class CannotAssign(Exception):
    """Internal: rows of this model cannot be assigned to samples by a plan.

    The loop over samples serves.
    """


class SlowPathWarning(UserWarning):
    """The loop over samples is used: right, and slow."""


class UnprotectedGradientWarning(UserWarning):
    """An ordinary gradient, neither clipped nor noisy, goes to tensors outside the model."""


class UnprotectedStateWarning(UserWarning):
    """A tensor of the model was written outside its forward, where nobody can see from what."""


def shapes_of(tensors: Sequence[Tensor]) -> str:
    """Of the first three."""
    shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors[:3])
    return shapes + (", ..." if len(tensors) > 3 else "")


def announce_unprotected(model: nn.Module, tensors: Sequence[Tensor]) -> None:
    warnings.warn(
        f"gradients flow through {type(model).__name__} to {len(tensors)} tensors outside it (of "
        f"shapes {shapes_of(tensors)}). Those gradients are ordinary ones, "
        "not clipped: whatever is trained with them is not private. Detach the inputs, or "
        "make those tensors part of the private model.",
        UnprotectedGradientWarning,
        stacklevel=4,
    )


def announce_trained_by_the_loss(model: nn.Module, tensors: Sequence[Tensor]) -> None:
    warnings.warn(
        f"the loss of {type(model).__name__} uses {len(tensors)} trainable tensors outside it (of "
        f"shapes {shapes_of(tensors)}; centres, a temperature, weights of "
        "tasks?). Their gradients are ordinary ones, not clipped: whatever is trained with them is "
        "not private, nor is then the model, whose loss they change. Make them part of the "
        "private model, or keep them fixed.",
        UnprotectedGradientWarning,
        stacklevel=4,
    )


def announce(model: nn.Module, reason: object) -> None:
    warnings.warn(
        f"{type(model).__name__}: {reason}. "
        "Every sample is computed alone, which is exact and slow.",
        SlowPathWarning,
        stacklevel=3,
    )


def announce_written(model: nn.Module, names: Sequence[str]) -> None:
    warnings.warn(
        f"{', '.join(names)} of {type(model).__name__} was written outside the model's forward "
        "while a private batch was out. If it was computed from the batch it is released without "
        "noise, and the model is not private. Write what does not depend on the batch after "
        "optimizer.step().",
        UnprotectedStateWarning,
        stacklevel=4,
    )
