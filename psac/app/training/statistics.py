"""What one logical step did to its samples: loss, norms, weights.

For a person who watches a run.  All of it comes from private records without noise: it is NOT
covered by epsilon, and a line with it says `"private": false`.  Guarantees: the values are those of
the whole logical batch, whatever its physical batches; norms that are not finite, whose samples the
engine drops, are left out of the quantiles and counted in the last bin of the histogram.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from psac.gradients import Sensitive

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
EDGES = [k / 4 for k in range(-16, 13)]  # log10 of the norm, 1e-4 to 1e3
WEIGHTS = (1e-6, 1e6)  # what lies beyond counts at the ends
WEIGHT_BINS = 8  # a decade


class StepStatistics:
    """Gathers the physical batches of one logical step."""

    def __init__(self) -> None:
        self.samples = 0
        self._parts: list[Sensitive] = []

    def add(self, part: Sensitive) -> None:
        self.samples += len(part.losses)
        self._parts.append(part)

    def to_json(self) -> dict[str, Any]:
        losses, norms, weights = map(self._all, ("losses", "norms", "weights"))
        kept = norms.isfinite()
        return {
            "loss": float(losses.mean()),
            "samples": self.samples,
            "norms": {"quantiles": _quantiles(norms[kept])},
            "weights": {"quantiles": _quantiles(weights[kept]), **_shares(weights[kept])},
            "histogram": {"log10_norm_edges": EDGES, "counts": _counts(norms)},
            "private": False,
        }

    def _all(self, name: str) -> Tensor:
        return torch.cat([getattr(part, name).double().cpu() for part in self._parts])


def _quantiles(values: Tensor) -> list[float] | None:
    if not len(values):
        return None
    return torch.quantile(values, torch.tensor(QUANTILES, dtype=values.dtype)).tolist()


def _shares(weights: Tensor) -> dict[str, list]:
    """How many samples have a weight between the edges, from the least weight to the largest."""
    places = (weights.clamp(*WEIGHTS).log10() * WEIGHT_BINS).floor().to(torch.int64)
    first = int(places.min()) if len(places) else 0
    counts = torch.bincount(places - first).tolist()
    edges = [(first + k) / WEIGHT_BINS for k in range(len(counts) + 1)]
    return {"log10_edges": edges, "counts": counts}


def _counts(norms: Tensor) -> list[int]:
    """How many norms fall between the edges; those beyond count in the bins at the ends."""
    logarithms = norms.nan_to_num(nan=torch.inf).clamp(10 ** EDGES[0], 10 ** EDGES[-1]).log10()
    places = torch.bucketize(logarithms, torch.tensor(EDGES[1:-1], dtype=norms.dtype), right=True)
    return torch.bincount(places, minlength=len(EDGES) - 1).tolist()
