"""From records to batches: the user's `collate_fn`, held to keep records apart."""

from .buckets import ByLength
from .isolated import IsolatedCollate
from .padding import Collated, ProbingCollate, refuse_padding_that_counts

__all__ = [
    "ByLength",
    "Collated",
    "IsolatedCollate",
    "ProbingCollate",
    "refuse_padding_that_counts",
]
