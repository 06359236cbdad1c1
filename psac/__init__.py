"""Differentially private training with per-sample adaptive clipping, for any PyTorch model."""

from psac.clipping import PSAC, AutoS, NSGD, AutoV, Abadi, Custom, ClippingRule
from psac.gradients import (
    per_sample_norms,
    weighted_gradient,
    check,
    Engine,
    PrivacyError,
    NotIsolated,
    OutsideTheTape,
    SlowPathWarning,
    UnprotectedGradientWarning,
)

__version__ = "0.1.0"

__all__ = [
    "PSAC",
    "AutoS",
    "NSGD",
    "AutoV",
    "Abadi",
    "Custom",
    "ClippingRule",
    "per_sample_norms",
    "weighted_gradient",
    "check",
    "Engine",
    "PrivacyError",
    "NotIsolated",
    "OutsideTheTape",
    "SlowPathWarning",
    "UnprotectedGradientWarning",
]
