"""Per-sample norms and clipped sums of gradients, for any model and loss function of one record."""

from .check import Report, check
from .clipped import ClippedSum, Sensitive
from .errors import NotIsolated, PrivacyError, SlowPathWarning
from .evaluator import Evaluator
from .functional import per_sample_norms, weighted_gradient

__all__ = [
    "ClippedSum",
    "Evaluator",
    "NotIsolated",
    "PrivacyError",
    "Report",
    "Sensitive",
    "SlowPathWarning",
    "check",
    "per_sample_norms",
    "weighted_gradient",
]
