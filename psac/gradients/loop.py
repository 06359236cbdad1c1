"""The loop over samples: every sample alone, by plain autograd. Exact for every model, and slow.

The last resort for models whose rows have no fixed place in the batch (data-dependent routing,
packed sequences), and the truth that the fast ways are measured by.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .capture import Rows, capture_single
from .graph import trace
from .planner import Forward
from .proof import share


def loop(
    forward: Forward,
    roots: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    mean: bool,
) -> Rows:
    """Per-sample gradients of all parameters, one forward and backward each."""
    n = forward.num_samples
    given = [
        torch.zeros_like(root) if c is None else c
        for root, c in zip(roots, cotangents, strict=True)
    ]
    collected: dict[str, list[Tensor | None]] = {
        name: [None] * n for name in forward.names.values()
    }
    for sample in range(n):
        with torch.enable_grad():
            alone = forward.run(forward.batch.take([sample]))
        shares = [
            share(c, root, one, sample, n, mean)
            for c, root, one in zip(given, roots, alone, strict=True)
        ]
        found, _ = capture_single(trace(alone, forward.names), alone, shares)
        for name, grad in found.items():
            collected[name][sample] = grad
    present = {k: grads for k, grads in collected.items() if any(g is not None for g in grads)}
    return Rows({name: filled(grads) for name, grads in present.items()}, n)


def filled(grads: Sequence[Tensor | None]) -> Tensor:
    like = next(g for g in grads if g is not None)
    return torch.stack([torch.zeros_like(like) if g is None else g for g in grads])
