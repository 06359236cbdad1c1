"""Per-sample norms and clipped sums of gradients, for any model and loss function of one record."""

from psac.gradients.check import Report, check
from psac.gradients.clipped import ClippedSum, Sensitive
from psac.gradients.errors import NotIsolated, PrivacyError, SlowPathWarning
from psac.gradients.evaluator import Evaluator
from psac.gradients.functional import per_sample_norms, weighted_gradient

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
