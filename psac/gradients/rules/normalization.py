"""Affine parameters of layer, group and (fixed) batch norm.

gradient of the weight = sum of g * normalised input.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..contributions import Dense
from ..loops import loops
from ..memory import SCRATCH_BYTES, scratch, slices
from ..precision import wide
from .arrival import Arrival, Contributions
from .broadcast import reduced


def layer_norm(arrival: Arrival) -> Contributions:
    node = arrival.node
    if 1 in arrival.inputs and (found := compiled_layer_norm(arrival)) is not None:
        return {k: found[k] for k in arrival.inputs}
    by_torch: Contributions = {}
    if 1 in arrival.inputs:
        # Not in scratch memory: where a sample has one row, the product itself is kept.
        product = wide(node._saved_input) - node._saved_result1
        by_torch[1] = reduced(arrival, product.mul_(node._saved_result2).mul_(arrival.grad), 1)
    if 2 in arrival.inputs:
        by_torch[2] = reduced(arrival, arrival.grad, 2)
    return by_torch


def compiled_layer_norm(arrival: Arrival) -> dict[int, Dense] | None:
    """Gradients of weight and bias; None where the loop does not serve."""
    node, compiled = arrival.node, loops()
    given = (arrival.grad, node._saved_input, node._saved_result1, node._saved_result2)
    if compiled is None or not compiled.serves(*given):
        return None
    n, shape = arrival.num_samples, arrival.shape(1)
    if arrival.layout.dim + len(shape) >= arrival.grad.dim():
        return None
    grad, inputs, mean, rstd = map(arrival.samples_first, given)
    width = math.prod(shape)
    bias, weight = compiled.layer_norm(
        grad.reshape(n, -1, width),
        inputs.reshape(n, -1, width),
        mean.reshape(n, -1),
        rstd.reshape(n, -1),
    )
    return {
        k: Dense(sums.view(n, *shape), squares) for k, (sums, squares) in ((1, weight), (2, bias))
    }


def group_norm(arrival: Arrival) -> Contributions | None:
    node = arrival.node
    if arrival.layout.dim != 0:
        return None
    grad_nc, inputs = (positions_last(wide(t)) for t in (arrival.grad, node._saved_input))
    groups = node._saved_result1.shape[1]
    given, compiled = (grad_nc, inputs, node._saved_result1, node._saved_result2), loops()
    if compiled is not None and compiled.serves(*given):
        sums = compiled.group_norm(*given)
        return {k: channels(arrival, sums[2 - k]) for k in arrival.inputs}
    mean, rstd = (
        wide(t).repeat_interleave(inputs.shape[1] // groups, 1)
        for t in (node._saved_result1, node._saved_result2)
    )
    total, scaled = torch.empty_like(mean), torch.empty_like(mean)
    # what is read twice is still in the cache
    for s in slices(len(inputs), inputs[0].nbytes, SCRATCH_BYTES):
        torch.sum(grad_nc[s], 2, out=total[s])
        if 1 in arrival.inputs:
            centred = torch.sub(inputs[s], mean[s].unsqueeze(-1), out=scratch(inputs[s]))
            torch.sum(centred.mul_(grad_nc[s]), 2, out=scaled[s])
    scaled *= rstd
    return {k: channels(arrival, scaled if k == 1 else total) for k in arrival.inputs}


def batch_norm_with_fixed_statistics(arrival: Arrival) -> Contributions | None:
    node = arrival.node
    if node._saved_training or arrival.layout.dim != 0:
        return None
    mean, variance = wide(node._saved_running_mean), wide(node._saved_running_var)
    total = positions_last(wide(arrival.grad)).sum(2)
    found: Contributions = {}
    if 1 in arrival.inputs:
        shape = (1, -1) + (1,) * (arrival.grad.dim() - 2)
        normalised = (wide(node._saved_input) - mean.view(shape)) * (
            variance + node._saved_eps
        ).rsqrt().view(shape)
        found[1] = channels(arrival, positions_last(wide(arrival.grad) * normalised).sum(2))
    if 2 in arrival.inputs:
        found[2] = channels(arrival, total)
    return found


def positions_last(values: Tensor) -> Tensor:
    """[rows, channels, positions], with one position where there are none."""
    return values.flatten(2) if values.dim() > 2 else values.unsqueeze(-1)


def channels(arrival: Arrival, values_rows: Tensor) -> Dense:
    """[rows, channels] -> a sum over the rows of each sample."""
    return Dense(arrival.samples_first(values_rows).sum(1))
