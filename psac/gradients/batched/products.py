"""Matrix products of rows: linear, matmul, addmm, einsum.

Letters: m row, i features in, o features out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.batched.owners import Owners
from psac.gradients.batched.packed import product
from psac.gradients.precision import as_autocast
from psac.gradients.rules.matrix import parsed
from psac.gradients.rules.physical import detached

if TYPE_CHECKING:
    from psac.gradients.batched.recorder import RowRecorder
    from psac.gradients.vectorized.recorder import Uses


def linear(rec: RowRecorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if rec.is_shared(input) or weight.dim() != 2:
        return NotImplemented
    if weight.requires_grad and not rec.is_shared(weight) and bias is not None:  # of records
        with rec:
            return F.linear(input, weight) + bias
    return times(rec, "linear", input, weight, bias, turned=True)


def times(
    rec: RowRecorder,
    rule: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    turned: bool = False,
) -> Tensor:
    """x W (+ b), or x W^T if W is `turned`."""
    shape = x.shape[:-1]
    flat = x.reshape(math.prod(shape), x.shape[-1])
    operands: list[Any] = as_autocast(flat, *detached(weight, bias))
    x, w, b = operands
    y, inputs = F.linear(x, w if turned else w.t(), b), x.detach()

    def uses(owners: Owners, grad: Tensor) -> Uses:
        return products(owners, inputs, grad, weight, bias, turned)

    return rec.tap(rule, y, 1, [weight, bias], uses, [inputs]).reshape(*shape, y.shape[-1])


def products(
    owners: Owners,
    inputs_mi: Tensor,
    grad_mo: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    turned: bool = True,
) -> Uses:
    """Sums over the rows of each record of x_i g_o, and of g_o."""
    part_of_weight = product(owners, inputs_mi, grad_mo)
    part = part_of_weight.with_bias() if bias is not None and bias.requires_grad else None
    if weight.requires_grad:
        yield weight, part_of_weight.transposed() if turned else part_of_weight
    if bias is not None and part is not None:
        yield bias, part


def matmul(rec: RowRecorder, input: Tensor, other: Tensor) -> Any:
    if rec.is_shared(input):
        return matmul_from_the_left(rec, input, other)
    if other.dim() == 2:
        return times(rec, "matmul", input, other)
    with rec:
        if other.dim() == 1:
            return F.linear(input, other.unsqueeze(0)).squeeze(-1)
        if other.dim() == 3 and input.dim() >= 3 and input.shape[-3] == len(other):
            pairs = zip(input.unbind(-3), other.unbind(0), strict=True)
            return torch.stack([torch.matmul(x, weight) for x, weight in pairs], -3)
    return NotImplemented


def matmul_from_the_left(rec: RowRecorder, input: Tensor, other: Tensor) -> Any:
    """W x, as x^T W^T."""
    if rec.is_shared(other) or input.dim() > 2:
        return NotImplemented
    with rec:
        if other.dim() == 1 or input.dim() == 1:
            x = other if other.dim() == 1 else other.transpose(-2, -1)
            return torch.matmul(x, input.t())
        return torch.matmul(other.transpose(-2, -1), input.t()).transpose(-2, -1)


def reversed_matmul(rec: RowRecorder, input: Tensor, other: Tensor) -> Any:
    return matmul(rec, other, input)


def addmm(
    rec: RowRecorder, input: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    if rec.is_shared(first) or not rec.is_shared(second) or second.dim() != 2:
        return NotImplemented
    if rec.is_shared(input) and input.dim() == 1 and beta == 1 and alpha == 1:
        return times(rec, "addmm", first, second, input)
    with rec:
        return beta * input + alpha * torch.matmul(first, second)


def grouped_mm(
    rec: RowRecorder,
    mat_a: Tensor,
    mat_b: Tensor,
    *more: Any,
    offs: Tensor | None = None,
    **settings: Any,
) -> Any:
    """Rows of experts, one after another; `offs` is where those of each end."""
    plain = not more and not any(value is not None for value in settings.values())
    if not plain or offs is None or mat_a.dim() != 2 or mat_b.dim() != 3 or rec.is_shared(mat_a):
        return NotImplemented
    ends = offs.tolist()
    with rec:
        pairs = zip(mat_a.tensor_split(ends), mat_b.unbind(0), strict=False)
        rest = mat_a.new_zeros(len(mat_a) - ends[-1], mat_b.shape[-1])
        return torch.cat([*(torch.matmul(x, weight) for x, weight in pairs), rest])


def einsum(rec: RowRecorder, equation: str, operands: Any, *more: Any, **kwargs: Any) -> Any:
    """Two operands, one of parameters: a product of matrices, one for each group."""
    both = (*operands, *more) if isinstance(operands, (list, tuple)) else (operands, *more)
    terms = parsed(equation, [operand.shape for operand in both])
    if terms is None or sum(map(rec.is_shared, both)) != 1:
        return NotImplemented
    first, second, result = terms
    x, weight = both
    if rec.is_shared(x):
        x, weight, first, second = weight, x, second, first
    groups = [k for k in second if k in first and k in result]
    summed = [k for k in second if k in first and k not in result]
    out = [k for k in second if k not in first]
    positions = [k for k in first if k not in second]
    if {*positions, *out, *groups} != set(result):
        return NotImplemented  # something is summed over by itself
    sizes = dict(zip([*first, *second], [*x.shape, *weight.shape], strict=True))

    def merged(tensor: Tensor, letters: str, *axes: list[str]) -> Tensor:
        order = [letters.index(k) for axis in axes for k in axis]
        return tensor.permute(order).reshape([math.prod(sizes[k] for k in axis) for axis in axes])

    with rec:
        ahead = [groups] if groups else []
        x = merged(x, first, *ahead, positions, summed)
        y = torch.matmul(x, merged(weight, second, *ahead, summed, out))
        letters = [*groups, *positions, *out]
        return y.reshape([sizes[k] for k in letters]).permute([letters.index(k) for k in result])
