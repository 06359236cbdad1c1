"""Per-sample squared norms and weighted sums for any model."""

from .engine import Engine
from .errors import NotIsolated, OutsideTheTape, PrivacyError, SlowPathWarning
from .functional import per_sample_norms, weighted_gradient

__all__ = [
    "Engine",
    "NotIsolated",
    "OutsideTheTape",
    "PrivacyError",
    "SlowPathWarning",
    "per_sample_norms",
    "weighted_gradient",
]
