"""Elementwise arithmetic with a parameter that is broadcast over samples.

Bias, class token, position table, layer scale, temperature, PReLU. The gradient of the parameter is
a plain sum of the output gradient (times what it was multiplied by) over all but the sample.
"""

from __future__ import annotations

from torch import Tensor

from ..contributions import Contribution, Dense
from ..precision import wide
from .arrival import Arrival, Contributions


def add(arrival: Arrival) -> Contributions:
    alpha = arrival.node._saved_alpha
    return {
        k: reduced(arrival, arrival.grad * alpha if k and alpha != 1 else arrival.grad, k)
        for k in arrival.inputs
    }


def sub(arrival: Arrival) -> Contributions:
    alpha = arrival.node._saved_alpha
    return {
        k: reduced(arrival, arrival.grad * -alpha if k else arrival.grad, k) for k in arrival.inputs
    }


def mul(arrival: Arrival) -> Contributions | None:
    factors = (arrival.node._saved_other, arrival.node._saved_self)
    if any(factors[k] is None for k in arrival.inputs):
        return None
    return {k: reduced(arrival, wide(arrival.grad) * factors[k], k) for k in arrival.inputs}


def div(arrival: Arrival) -> Contributions | None:
    if arrival.inputs != [1]:
        return None
    quotient = wide(arrival.node._saved_self) / arrival.node._saved_other.square()
    return {1: reduced(arrival, -arrival.grad * quotient, 1)}


def expand(arrival: Arrival) -> Contributions:
    return {0: reduced(arrival, arrival.grad, 0)}


def prelu(arrival: Arrival) -> Contributions | None:
    if arrival.inputs != [1]:
        return None
    inputs = arrival.node._saved_self
    return {1: reduced(arrival, wide(arrival.grad) * inputs.clamp(max=0), 1)}


def reduced(arrival: Arrival, grad: Tensor, number: int) -> Contribution:
    """Sums the gradient of the output to the broadcast input of that number, per sample."""
    shape = arrival.shape(number)
    dim = arrival.layout.dim
    aligned = (1,) * (grad.dim() - len(shape)) + tuple(shape)
    grad_np = wide(arrival.samples_first(grad))  # [n, p, every dimension but the batch's]
    sizes = aligned[:dim] + aligned[dim + 1 :]
    over = [1] + [d + 2 for d, size in enumerate(sizes) if size == 1]
    over = [d for d in over if grad_np.shape[d] != 1]
    total = grad_np.sum(over) if over else grad_np
    return Dense(total.reshape(arrival.num_samples, *shape))
