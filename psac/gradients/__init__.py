"""Per-sample squared norms and weighted sums for any model."""

from .functional import per_sample_norms, weighted_gradient

__all__ = ["per_sample_norms", "weighted_gradient"]
