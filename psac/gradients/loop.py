"""The loop over samples: every sample alone, by plain autograd. Exact for every model, and slow.

The last resort for models whose rows have no fixed place in the batch (data-dependent routing,
packed sequences), and the truth that the fast ways are measured by.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .capture import Rows, capture_single
from .graph import Graph, trace
from .layout import Layout, find
from .planner import Forward


def loop(
    forward: Forward,
    graph: Graph,
    roots: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    scalar_share: float,
) -> Rows:
    """Per-sample gradients of all parameters, one forward and backward each."""
    n = forward.num_samples
    given = [
        torch.zeros_like(root) if c is None else c
        for root, c in zip(roots, cotangents, strict=True)
    ]
    collected: dict[str, list[Tensor | None]] = {
        name: [None] * n for name in graph.parameters.values()
    }
    for sample in range(n):
        with torch.enable_grad():
            alone = forward.run(forward.batch.take([sample]))
        shares = [
            own(c, root, one, sample, n, scalar_share)
            for c, root, one in zip(given, roots, alone, strict=True)
        ]
        found, _ = capture_single(trace(alone, forward.names), alone, shares)
        for name, grad in found.items():
            collected.setdefault(name, [None] * n)[sample] = grad
    return Rows(
        {
            name: filled(grads)
            for name, grads in collected.items()
            if any(g is not None for g in grads)
        },
        n,
    )


def own(
    cotangent: Tensor, root: Tensor, alone: Tensor, sample: int, n: int, scalar_share: float
) -> Tensor:
    dim = find(root.shape, alone.shape, n, 1) if n > 1 else None
    if dim is None:
        return cotangent * (scalar_share if n > 1 else 1)
    rows = torch.tensor(Layout(dim).rows_of(root.shape[dim], n, sample), device=root.device)
    return cotangent.index_select(dim, rows)


def filled(grads: Sequence[Tensor | None]) -> Tensor:
    like = next(g for g in grads if g is not None)
    return torch.stack([torch.zeros_like(like) if g is None else g for g in grads])
