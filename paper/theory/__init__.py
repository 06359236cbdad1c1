"""The mathematics of the DP-PSAC paper (arXiv:2212.00328) as functions of numpy arrays.

Every formula is in its corrected form (docs/errata.md); what the paper does not have is marked
"[derived]".  All arguments broadcast against one another, and are checked once, where they enter:
in `Assumptions` and `Schedule`, and r in each function that takes one.
"""

from paper.theory.weights import (
    auto_s_weight,
    contribution,
    heaviest_norm,
    largest_weight,
    matched_regulariser,
    weight,
)
from paper.theory.settings import Assumptions, Schedule
from paper.theory.lemmas import (
    alpha,
    descent_far,
    descent_near,
    deviation,
    largest_learning_rate,
    smooth_weight_bound,
    weighted_norm_bound,
    weighted_norm_supremum,
)
from paper.theory.convergence import (
    convergence_bound,
    delta_term,
    learning_rate,
    non_vanishing_bound,
    smallest_num_steps,
)
from paper.theory.privacy import (
    SAFE_C2,
    convergence_rate,
    noise_multiplier,
    private_schedule,
    records_for_noise,
    smallest_num_records,
)
from paper.theory.auto_s import (
    auto_s_alpha,
    auto_s_descent_far,
    auto_s_deviation,
    auto_s_non_vanishing_bound,
    auto_s_smooth_weight_bound,
    auto_s_weighted_norm_supremum,
)
from paper.theory.simple import simple_bound, simple_learning_rate

__all__ = [
    "weight",
    "contribution",
    "largest_weight",
    "heaviest_norm",
    "auto_s_weight",
    "matched_regulariser",
    "Assumptions",
    "Schedule",
    "smooth_weight_bound",
    "largest_learning_rate",
    "weighted_norm_bound",
    "weighted_norm_supremum",
    "descent_far",
    "descent_near",
    "alpha",
    "deviation",
    "learning_rate",
    "delta_term",
    "non_vanishing_bound",
    "convergence_bound",
    "smallest_num_steps",
    "SAFE_C2",
    "noise_multiplier",
    "private_schedule",
    "convergence_rate",
    "records_for_noise",
    "smallest_num_records",
    "auto_s_smooth_weight_bound",
    "auto_s_weighted_norm_supremum",
    "auto_s_alpha",
    "auto_s_descent_far",
    "auto_s_deviation",
    "auto_s_non_vanishing_bound",
    "simple_bound",
    "simple_learning_rate",
]
