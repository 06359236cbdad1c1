"""Differentially private training with per-sample adaptive clipping, for any PyTorch model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from psac import _starting as _starting  # first: what follows takes seconds
from psac.noise.generators import InsecureNoiseWarning
from psac.sampling import Poisson, FixedSize, BallsInBins, Sampling
from psac.clipping.rules import (
    PSAC,
    AutoS,
    NSGD,
    AutoV,
    Abadi,
    AdaptivePSAC,
    Custom,
    ClippingRule,
)
from psac.gradients import (
    per_sample_norms,
    weighted_gradient,
    check,
    Sensitive,
    PrivacyError,
    NotIsolated,
    SlowPathWarning,
)
from psac.accounting import Ledger, PrivacyWarning, calibrate, epsilon, tuned_epsilon
from psac.private import Private, make_private
from psac.checkpoint.saving import CheckpointError, load_checkpoint, save_checkpoint
from psac.auditing import audit

if TYPE_CHECKING:
    from psac.app import data as data
    from psac.app import models as models
    from psac.app import reporting as reporting
    from psac.app import training as training

__version__ = "0.1.0"

__all__ = [
    "InsecureNoiseWarning",
    "Poisson",
    "FixedSize",
    "BallsInBins",
    "Sampling",
    "PSAC",
    "AutoS",
    "NSGD",
    "AutoV",
    "Abadi",
    "AdaptivePSAC",
    "Custom",
    "ClippingRule",
    "per_sample_norms",
    "weighted_gradient",
    "check",
    "Sensitive",
    "PrivacyError",
    "NotIsolated",
    "SlowPathWarning",
    "Ledger",
    "PrivacyWarning",
    "calibrate",
    "epsilon",
    "tuned_epsilon",
    "Private",
    "make_private",
    "CheckpointError",
    "load_checkpoint",
    "save_checkpoint",
    "audit",
]

APP = ("data", "models", "training", "reporting")  # imported when they are first used


def __getattr__(name: str) -> Any:
    """`psac.data.load` without an import of its own."""
    if name in APP:
        return import_module(f"psac.app.{name}")
    raise AttributeError(f"module 'psac' has no attribute '{name}'")
