"""Embedding tables: the gradient of a table has as many rows as the sample has distinct tokens."""

from __future__ import annotations

from torch import Tensor

from ..errors import PrivacyError
from ..lookup import Lookup
from .arrival import Arrival, Contributions


def embedding(arrival: Arrival) -> Contributions | None:
    node = arrival.node
    indices: Tensor = node._saved_indices
    if node._saved_scale_grad_by_freq:
        raise PrivacyError(
            "an embedding with scale_grad_by_freq=True divides by counts over the whole batch, so "
            "a sample's gradient depends on other samples. Use scale_grad_by_freq=False."
        )
    if arrival.layout.dim >= indices.dim():
        return None
    padding = node._saved_padding_idx
    if padding >= 0:
        indices = indices.masked_fill(indices == padding, -1)
    index_np = arrival.samples_first(indices).flatten(1)
    values = arrival.samples_first(arrival.grad)
    return {0: Lookup(index_np, values.reshape(*index_np.shape, -1), arrival.shape(0)[0])}
