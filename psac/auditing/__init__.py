"""Empirical lower bounds on epsilon: what an attack has shown, against what was promised."""

from psac.auditing.bounds import (
    gaussian_lower_bound,
    clopper_pearson_lower_bound,
    one_run_lower_bound,
    Bound,
    mu_to_epsilon,
    epsilon_to_mu,
)
from psac.auditing.step import audit, Audit
from psac.auditing.canaries import Canaries

__all__ = [
    "gaussian_lower_bound",
    "clopper_pearson_lower_bound",
    "one_run_lower_bound",
    "Bound",
    "mu_to_epsilon",
    "epsilon_to_mu",
    "audit",
    "Audit",
    "Canaries",
]
