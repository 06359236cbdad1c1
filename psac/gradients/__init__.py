"""Per-sample norms and clipped sums of gradients, for any model and loss function of one record.

In: a model, a loss function and a batch.  Out: losses, norms, clipping weights, weighted sums.
In the order in which a batch passes them:

    evaluator      chooses how the function is evaluated, and refuses what is not isolated
    vectorized/    for all records at once, under torch.vmap
    alone          one record after the other
    batched/       the whole batch, by the user's choice
    isolation/     what these leave open: state, tensors from outside, what would remain
    rules/         how each operation runs, and what its output gradient means for parameters
    measured       norms, taken while the backward pass runs
    contributions/ per-sample gradients that are not formed
    kernels/       their inner loops in C
    clipped        norms, weights, weighted sums
    functional, check   the same without noise, for tests and research
"""

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
