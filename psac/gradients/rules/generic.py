"""Any operation: the vector-Jacobian product of that one node, once per sample.

The output gradient is masked to one sample at a time and pushed through the node; torch batches the
masks where the operation knows how (vmap), else they go one after the other. Slow for large nodes,
right for all that autograd can differentiate twice over the same graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ..contributions import Dense
from ..memory import TEMPORARY_BYTES
from .arrival import Arrival, Contributions


def generic(arrival: Arrival, inputs: Sequence[int]) -> Contributions:
    outputs = [k for k, grad in enumerate(arrival.grads) if grad is not None]
    targets = [GradientEdge(*arrival.node.next_functions[k]) for k in inputs]
    edges = [GradientEdge(arrival.node, k) for k in outputs]
    size = sum(arrival.grads[k].nbytes for k in outputs)  # type: ignore[union-attr]
    step = max(1, min(arrival.num_samples, TEMPORARY_BYTES // max(1, size)))
    parts: list[list[Tensor]] = []
    for start in range(0, arrival.num_samples, step):
        samples = range(start, min(start + step, arrival.num_samples))
        masked = [masked_copies(arrival, k, samples) for k in outputs]
        parts.append(pull_back(edges, targets, masked, [arrival.shape(k) for k in inputs]))
    return {k: Dense(torch.cat([part[j] for part in parts])) for j, k in enumerate(inputs)}


def masked_copies(arrival: Arrival, output: int, samples: range) -> Tensor:
    """[len(samples), shape of the output]: the output gradient of each sample alone."""
    grad, layout = arrival.grads[output], arrival.tap.layouts[output]
    assert grad is not None
    assert layout is not None
    copies = grad.new_zeros(len(samples), *grad.shape)
    for place, sample in enumerate(samples):
        rows = torch.tensor(
            layout.rows_of(grad.shape[layout.dim], arrival.num_samples, sample), device=grad.device
        )
        copies[place].index_copy_(layout.dim, rows, grad.index_select(layout.dim, rows))
    return copies


def pull_back(
    outputs: Sequence[GradientEdge],
    targets: Sequence[GradientEdge],
    grads: Sequence[Tensor],
    shapes: Sequence[tuple],
) -> list[Tensor]:
    """Vector-Jacobian products for a leading batch of output gradients.

    Zeros where nothing arrives.
    """
    count = grads[0].shape[0]

    def run(given: Sequence[Tensor], batched: bool) -> list[Tensor | None]:
        return list(
            torch.autograd.grad(
                outputs,
                targets,
                given,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        )

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vmap tells when it falls back to a loop
            found = run(grads, True)
    except RuntimeError:
        each = [run([grad[k] for grad in grads], False) for k in range(count)]
        found = [
            None if any(g is None for g in column) else torch.stack(column)
            for column in zip(*each, strict=True)
        ]
    filler = grads[0]
    return [
        filler.new_zeros(count, *shape) if g is None else g
        for g, shape in zip(found, shapes, strict=True)
    ]
