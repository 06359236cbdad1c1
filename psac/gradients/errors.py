"""What the engine refuses, and why."""

from __future__ import annotations

import warnings

from torch import nn


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


def announce(model: nn.Module, reason: object) -> None:
    warnings.warn(
        f"{type(model).__name__}: {reason}. "
        "Every sample is computed alone, which is exact and slow.",
        SlowPathWarning,
        stacklevel=3,
    )
