"""Matrix products: linear, bilinear, matmul, addmm, einsum.

For y = x W the gradient of W is x^T g, a sum over the positions of a record: an `Outer`, or a
`Single` where there is one position.  A bias that is added to all positions is their plain sum.

Letters: n record, p position, i features in, o features out, h group.
"""

from __future__ import annotations

import math
import string
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.contributions.base import Outer
from psac.gradients.contributions.ragged import Ragged, without_zero_rows
from psac.gradients.contributions.single import Single
from psac.gradients.precision import as_autocast
from psac.gradients.rules.physical import are_records, detached, physically, shaped

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder, Uses


def linear(rec: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """x W^T + b for W [o, i]."""
    input = rec.one_for_each(input)
    if are_records(input) != [True] or any(are_records(weight, bias)) or weight.dim() != 2:
        return NotImplemented
    if not rec.serves(input, weight):
        return NotImplemented
    with physically():
        y = times(rec, "linear", rec.physical(input), weight, bias, turned=True)
    return rec.of_records(y)


def matmul(rec: Recorder, input: Tensor, other: Tensor) -> Any:
    if not rec.serves(input, other):
        return NotImplemented
    kinds = are_records(input, other)
    if kinds == [True, False] and fits(input, other):
        with physically():
            return rec.of_records(times(rec, "matmul", rec.physical(input), other))
    if kinds == [False, True] and input.dim() == 2:
        with physically():
            x = rec.physical(other)
            if x.dim() == 2:  # one column
                return rec.of_records(times(rec, "matmul", x, input, turned=True))
            y = times(rec, "matmul", x.transpose(-2, -1), input, turned=True)
            return rec.of_records(y.transpose(-2, -1))
    return NotImplemented


def addmm(
    rec: Recorder, input: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """b + x W, as GPT-2 has it."""
    plain = beta == 1 and alpha == 1 and input.dim() == 1 and second.dim() == 2
    if not plain or are_records(input, first, second) != [False, True, False]:
        return NotImplemented
    if not rec.serves(input, first, second):
        return NotImplemented
    with physically():
        return rec.of_records(times(rec, "addmm", rec.physical(first), second, input))


def bilinear(
    rec: Recorder, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Any:
    """x^T W_o y + b_o, as a product of W with all pairs of features."""
    if not any(are_records(input1, input2)) or any(are_records(weight, bias)):
        return NotImplemented
    if not rec.serves(input1, input2, weight, bias):
        return NotImplemented
    with rec:
        pairs = (input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2)
        return F.linear(pairs, weight.flatten(1), bias)


def fits(records: Tensor, weight: Tensor) -> bool:
    """One matrix for all positions, or one for each group of them."""
    if weight.dim() == 3:
        return records.dim() >= 3 and records.shape[-3] == len(weight)
    return weight.dim() == 2


def times(
    rec: Recorder,
    rule: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    turned: bool = False,
) -> Tensor:
    """x W (+ b), or x W^T if W is `turned`; [n, ..., i], with W [h, i, o] [n, ..., h, p, i]."""
    x, w, b = as_autocast(x, *detached(weight, bias))
    if weight.dim() == 3:
        y = torch.matmul(x, w)
    else:
        rows = F.linear(x.flatten(0, -2), w if turned else w.t(), b)
        y = shaped(rows, (*x.shape[:-1], rows.shape[-1]))

    def uses(grad: Tensor) -> Uses:
        n = rec.num_samples
        if weight.dim() == 3:
            yield weight, groups_by_groups(x, grad, n)
            return
        yield from of_product(x, grad, n, weight, bias, turned)

    return rec.tap(rule, y, [weight, bias], uses, [x])


def of_product(
    x: Tensor, grad: Tensor, n: int, weight: Tensor, bias: Tensor | None, turned: bool
) -> Uses:
    """What x W (+ b), or x W^T, adds to the gradients of W and b."""
    product = rows_by_rows(x, grad, n)
    part = product.with_bias() if bias is not None and bias.requires_grad else None
    if weight.requires_grad:
        yield weight, product.transposed() if turned else product
    if bias is not None and part is not None:
        yield bias, part


def rows_by_rows(inputs: Tensor, grads: Tensor, n: int) -> Outer | Ragged | Single:
    """sum over positions of x_i g_o, of shape [i, o]; both are [n, positions..., features]."""
    positions = math.prod(inputs.shape[1:-1])
    if positions == 1:
        x_ni, g_no = (shaped(t, (n, t.shape[-1])) for t in (inputs, grads))
        return Single(x_ni, g_no)
    x_npi, g_npo = (t.reshape(n, positions, t.shape[-1]) for t in (inputs, grads))
    shape = (x_npi.shape[-1], g_npo.shape[-1])
    return without_zero_rows(Outer(x_npi.unsqueeze(1), g_npo.unsqueeze(1), shape, True))


def groups_by_groups(inputs: Tensor, grads: Tensor, n: int) -> Outer:
    """The same for each group: [n, ..., h, p, features], of shape [h, i, o]."""
    x_nhpi, g_nhpo = (
        t.reshape(n, -1, *t.shape[-3:]).transpose(1, 2).flatten(2, 3) for t in (inputs, grads)
    )
    shape = (x_nhpi.shape[1], x_nhpi.shape[-1], g_nhpo.shape[-1])
    return Outer(x_nhpi, g_nhpo, shape, True)


def einsum(rec: Recorder, equation: str, operands: Any, *more: Any, **kwargs: Any) -> Any:
    """Two operands, one of parameters: a product of matrices, one for each group."""
    both = (*operands, *more) if isinstance(operands, (list, tuple)) else (operands, *more)
    terms = parsed(equation, [operand.shape for operand in both])
    if terms is None or not rec.serves(*both):
        return NotImplemented
    first, second, result = terms
    kinds = are_records(*both)
    if kinds == [False, True]:
        both, first, second = both[::-1], second, first
    elif kinds != [True, False]:
        return NotImplemented
    groups = [k for k in second if k in first and k in result]
    summed = [k for k in second if k in first and k not in result]
    out = [k for k in second if k not in first]
    positions = [k for k in first if k not in second]
    if {*positions, *out, *groups} != set(result):
        return NotImplemented  # something is summed over by itself
    with physically():
        x, weight = rec.physical(both[0]), both[1]
        sizes = dict(zip([*first, *second], [*x.shape[1:], *weight.shape], strict=True))

        def merged(tensor: Tensor, letters: str, *axes: list[str], ahead: int = 0) -> Tensor:
            order = [letters.index(k) + ahead for axis in axes for k in axis]
            shape = [math.prod(sizes[k] for k in axis) for axis in axes]
            return tensor.permute([*range(ahead), *order]).reshape(*tensor.shape[:ahead], *shape)

        if groups:
            x = merged(x, first, groups, positions, summed, ahead=1)
            y = times(rec, "einsum", x, merged(weight, second, groups, summed, out))
        else:
            x = merged(x, first, positions, summed, ahead=1)
            y = times(rec, "einsum", x, merged(weight, second, summed, out))
        letters = [*groups, *positions, *out]
        y = y.reshape(len(x), *(sizes[k] for k in letters))
        return rec.of_records(y.permute(0, *(letters.index(k) + 1 for k in result)))


def parsed(equation: str, shapes: list[torch.Size]) -> tuple[str, str, str] | None:
    """The letters of two operands and of the result; None for what is not a plain product."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(shapes) != 2 or len(terms) != 2:
        return None
    if not arrow:
        once = sorted(k for k in set(inputs) - {".", ","} if inputs.count(k) == 1)
        result = "".join(["..." if "..." in inputs else "", *once])
    hidden = [
        len(shape) - len(term) + 3 if "..." in term else 0
        for term, shape in zip(terms, shapes, strict=True)
    ]
    free = [k for k in string.ascii_letters if k not in inputs]
    letters = "".join(free[: max(hidden)])
    terms = [
        term.replace("...", letters[len(letters) - count :])
        for term, count in zip(terms, hidden, strict=True)
    ]
    result = result.replace("...", letters)
    if any(len(set(term)) != len(term) for term in (*terms, result)):
        return None
    sizes = [*zip("".join(terms), [*shapes[0], *shapes[1]], strict=True)]
    if len(set(sizes)) != len({letter for letter, _ in sizes}):
        return None  # an axis of size one is broadcast
    return terms[0], terms[1], result
