"""Statistics of one logical step: losses, norms and weights of its samples.

All of it comes from private records without noise: it is NOT covered by epsilon, and its lines say
`"private": false`.  Guarantees: the values are those of the whole logical batch (of several
workers, of the part that worker 0 computes); samples without a finite norm, which the engine drops,
are left out of the quantiles and counted in the last bin of the histogram.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from psac.gradients import Sensitive

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
EDGES = [k / 4 for k in range(-16, 13)]  # log10 of the norm, 1e-4 to 1e3
WEIGHTS = (1e-6, 1e6)  # weights beyond count at the ends
WEIGHT_BINS = 8  # per decade


class StepStatistics:
    """Collects the physical batches of one logical step."""

    def __init__(self) -> None:
        self.samples = 0
        self._parts: list[Sensitive] = []

    def add(self, part: Sensitive) -> None:
        self.samples += len(part.losses)
        self._parts.append(part)

    def to_json(self) -> dict[str, Any]:
        losses, norms, weights = map(self._all, ("losses", "norms", "weights"))
        finite = norms.isfinite()
        return {
            "loss": float(losses.mean()),
            "samples": self.samples,
            "norms": {"quantiles": _quantiles(norms[finite])},
            "weights": {"quantiles": _quantiles(weights[finite]), **_shares(weights[finite])},
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
    """A histogram of the weights, from the smallest to the largest."""
    places = (weights.clamp(*WEIGHTS).log10() * WEIGHT_BINS).floor().to(torch.int64)
    first = int(places.min()) if len(places) else 0
    counts = torch.bincount(places - first).tolist()
    edges = [(first + k) / WEIGHT_BINS for k in range(len(counts) + 1)]
    return {"log10_edges": edges, "counts": counts}


def _counts(norms: Tensor) -> list[int]:
    """A histogram of the norms; those beyond the edges count in the bins at the ends."""
    logarithms = norms.nan_to_num(nan=torch.inf).clamp(10 ** EDGES[0], 10 ** EDGES[-1]).log10()
    places = torch.bucketize(logarithms, torch.tensor(EDGES[1:-1], dtype=norms.dtype), right=True)
    return torch.bincount(places, minlength=len(EDGES) - 1).tolist()
