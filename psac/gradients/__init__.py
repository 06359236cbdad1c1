"""Per-sample squared norms and weighted sums for any model."""

from .check import Report, check
from .engine import Engine
from .errors import (
    NotIsolated,
    OutsideTheTape,
    PrivacyError,
    SlowPathWarning,
    UnprotectedGradientWarning,
    UnprotectedStateWarning,
)
from .functional import per_sample_norms, weighted_gradient

__all__ = [
    "Engine",
    "NotIsolated",
    "OutsideTheTape",
    "PrivacyError",
    "Report",
    "SlowPathWarning",
    "UnprotectedGradientWarning",
    "UnprotectedStateWarning",
    "check",
    "per_sample_norms",
    "weighted_gradient",
]
