"""From records to batches: the user's `collate_fn`, held to keep records apart."""

from psac.loading.collation.buckets import ByLength
from psac.loading.collation.default import DefaultCollate
from psac.loading.collation.isolated import IsolatedCollate
from psac.loading.collation.padding import (
    Collated,
    Probe,
    ProbingCollate,
    refuse_padding_that_counts,
)

__all__ = [
    "ByLength",
    "Collated",
    "DefaultCollate",
    "IsolatedCollate",
    "Probe",
    "ProbingCollate",
    "refuse_padding_that_counts",
]
