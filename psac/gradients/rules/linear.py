"""Matrix products: mm, addmm, bmm, baddbmm.

They serve nn.Linear, matmul, einsum, recurrent cells, attention projections.

For y = x W the gradient of W is x^T g, a sum over the rows of a sample: an `Outer`, or a `Single`
where there is one row.
A bias that is added to all rows is a broadcast sum.
"""

from __future__ import annotations

from torch import Tensor

from ..contributions import Contribution, Outer
from ..ragged import Ragged, without_zero_rows
from ..single import Single
from .arrival import Arrival, Contributions
from .broadcast import reduced


def mm(arrival: Arrival) -> Contributions | None:
    return products(arrival, 0, "self", "mat2")


def addmm(arrival: Arrival) -> Contributions | None:
    if arrival.node._saved_alpha != 1 or arrival.node._saved_beta != 1:
        return None
    return with_bias(arrival, products(arrival, 1, "mat1", "mat2"))


def bmm(arrival: Arrival) -> Contributions | None:
    return products(arrival, 0, "self", "mat2")


def baddbmm(arrival: Arrival) -> Contributions | None:
    if arrival.node._saved_alpha != 1 or arrival.node._saved_beta != 1:
        return None
    return with_bias(arrival, products(arrival, 1, "batch1", "batch2"))


def with_bias(arrival: Arrival, found: Contributions) -> Contributions:
    if 0 not in arrival.inputs:
        return found
    weight, grad = found.get(2), arrival.grad
    whole = grad.dim() == 2 and arrival.layout.dim == 0 and arrival.shape(0) == grad.shape[1:]
    if whole and isinstance(weight, (Outer, Ragged, Single)):
        found[0] = weight.with_bias()
    else:
        found[0] = reduced(arrival, grad, 0)
    return found


def products(arrival: Arrival, first: int, left: str, right: str) -> Contributions:
    """Contributions to the two factors of left @ right.

    Their input numbers are `first` and `first` + 1.
    """
    found: Contributions = {}
    rows, columns = arrival.grad.dim() - 2, arrival.grad.dim() - 1
    if first + 1 in arrival.inputs and arrival.layout.dim == rows:
        inputs, grad = getattr(arrival.node, f"_saved_{left}"), arrival.grad
        if grad.dim() == 2 and len(grad) == arrival.num_samples:
            found[first + 1] = Single(inputs, grad)
        else:
            found[first + 1] = outer(arrival, inputs, grad, inputs_are_left=True)
    if first in arrival.inputs and arrival.layout.dim == columns:
        inputs = getattr(arrival.node, f"_saved_{right}").transpose(-2, -1)
        grad = arrival.grad.transpose(-2, -1)
        found[first] = outer(arrival, grad, inputs, inputs_are_left=False, dim=rows)
    return found


def outer(
    arrival: Arrival,
    left: Tensor,
    right: Tensor,
    inputs_are_left: bool,
    dim: int | None = None,
) -> Contribution:
    """Rows of `left` and `right` belong to the same positions.

    They are [rows, features] or [group, rows, features].
    """
    layout = arrival.layout if dim is None else type(arrival.layout)(dim, arrival.layout.inner)
    left_np, right_np = (layout.samples_first(t, arrival.num_samples) for t in (left, right))
    shape = (*left.shape[:-2], left.shape[-1], right.shape[-1])
    if left.dim() == 2:
        left_nhp, right_nhp = left_np.unsqueeze(1), right_np.unsqueeze(1)
    else:  # [n, p, h, features]: groups stand before positions
        left_nhp, right_nhp = left_np.transpose(1, 2), right_np.transpose(1, 2)
    return without_zero_rows(Outer(left_nhp, right_nhp, shape, inputs_are_left))
