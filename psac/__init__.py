"""Differentially private training with per-sample adaptive clipping, for any PyTorch model."""

from psac import _starting as _starting  # first: what follows takes seconds
from psac.randomness import InsecureNoiseWarning
from psac.sampling import Poisson, FixedSize, BallsInBins, Sampling
from psac.clipping import PSAC, AutoS, NSGD, AutoV, Abadi, AdaptivePSAC, Custom, ClippingRule
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
from psac.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from psac.auditing import audit

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
