"""Weights that are computed from parameters, and what each parameter's gradient gains from them.

A per-sample gradient of W = f(parameters) is pulled back through f without being formed: each
operation of f maps contributions to contributions.

    pointwise             entries times a shared factor: masks, quantisation, signs, scales
    broadcast parameters  sums over rows, columns or everything, [n, few numbers]
    weight norm           the part of the gradient along each row, and the rest
    matrix products       low-rank additions
    matrix exponential    a few outer products for each (exponential.py): orthogonal weights
    one number            its gradient for each record, times that of the parameters, which is the
                          same for all: penalties of weights, spectral norms

Other operations raise `Unstructured`; joint.py forms the gradients then.  What is added to a sum is
what was measured: norms and sums come from the same factors.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from psac.gradients.contributions.base import Contribution, Dense, Outer
from psac.gradients.contributions.exponential import of_matrix_exp_rows
from psac.gradients.contributions.graph import ACCUMULATE, Edge, Graph, Node
from psac.gradients.contributions.joined import Sum, joined
from psac.gradients.contributions.lookup import Lookup
from psac.gradients.contributions.ragged import Ragged
from psac.gradients.contributions.shared import Scaled, Spread, Unstructured, inner
from psac.gradients.contributions.single import Single
from psac.gradients.precision import summed_in, wide

SAME = frozenset({"ToCopyBackward0", "AliasBackward0", "CloneBackward0"})
VIEWS = frozenset({"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})  # same shape
TURNED = frozenset({"TBackward0", "TransposeBackward0"})
# Each entry of the result depends on the same entry of one tensor, and on what has no gradient.
POINTWISE = frozenset(
    {
        *("AbsBackward0", "ClampBackward0", "ClampBackward1", "ClampMaxBackward0"),
        *("ClampMinBackward0", "CosBackward0", "EluBackward0", "ErfBackward0", "ExpBackward0"),
        *("Expm1Backward0", "GeluBackward0", "HardtanhBackward0", "LeakyReluBackward0"),
        *("Log1PBackward0", "LogBackward0", "LogSigmoidBackward0", "MaskedFillBackward0"),
        *("NegBackward0", "PowBackward0", "ReciprocalBackward0", "ReluBackward0", "RsqrtBackward0"),
        *("SigmoidBackward0", "SinBackward0", "SinhBackward0", "SoftplusBackward0"),
        *("SqrtBackward0", "TanBackward0", "TanhBackward0", "TrilBackward0", "TriuBackward0"),
    }
)
TRIED_AGAIN = 1 / 16
_tried: set[tuple[str, tuple[int, ...]]] = set()  # functions and shapes
_refused: set[str] = set()
Found = list[tuple[Edge, Contribution]]  # what children get


def fits(graph: Graph, edge: Edge) -> bool:
    """Whether what is computed like this can be pulled back."""
    stack, seen = [edge], set()
    while stack:
        place = stack.pop()
        number, shape = place[0], graph.shape(place)
        if number in seen or graph.names[number] == ACCUMULATE or math.prod(shape) == 1:
            continue
        seen.add(number)
        if len(shape) > 2 or not known(graph, number):
            return False
        stack += [child for child in graph.children[number] if child[0] >= 0]
    return True


def known(graph: Graph, number: int) -> bool:
    name, live = graph.names[number], [c for c in graph.children[number] if c[0] >= 0]
    if name in POINTWISE or name in VIEWS or (is_own(name) and name not in _refused):
        return len(live) == 1 and graph.shape((number, 0)) == graph.shape(live[0])
    return name in SAME or name in TURNED or name in RULES


def is_own(name: str) -> bool:
    """An autograd.Function of the user's: whether it is pointwise shows when it is tried."""
    return not name[-1].isdigit() and "::" not in name


def pulled_back(graph: Graph, edge: Edge, part: Contribution) -> dict[str, list[Contribution]]:
    """By parameter."""
    gained: dict[str, list[Contribution]] = {}
    pending: dict[Edge, list[Contribution]] = {edge: [part]}
    while pending:
        place = max(pending)  # whose gradient is complete: children have smaller numbers
        part = joined(pending.pop(place))
        if place[0] in graph.parameters:
            gained.setdefault(graph.parameters[place[0]], []).append(part)
        elif graph.names[place[0]] == ACCUMULATE:
            continue
        elif math.prod(graph.shape(place)) == 1:
            for name, one in below_a_number(graph, place, part).items():
                gained.setdefault(name, []).append(one)
        else:
            for child, gain in children_of(graph, place, part):
                pending.setdefault(child, []).append(gain)
    return gained


def below_a_number(graph: Graph, edge: Edge, part: Contribution) -> dict[str, Contribution]:
    """One gradient for all records, times the number's own for each."""
    names = list(graph.leaves)
    ones = torch.ones(graph.shape(edge))
    grads = backward(graph, edge, [(graph.leaves[name], 0) for name in names], ones)
    coefficients = part.dense().flatten()
    gained: dict[str, Contribution] = {}
    for name, grad in zip(names, grads, strict=True):
        if grad is not None:
            shape = (-1, *[1] * grad.dim())
            gained[name] = Spread(coefficients.to(wide(grad).dtype).view(shape), wide(grad))
    return gained


def backward(
    graph: Graph, edge: Edge, targets: Sequence[Edge], value: Tensor
) -> tuple[Tensor | None, ...]:
    meta = graph.nodes[edge[0]]._input_metadata[edge[1]]
    return torch.autograd.grad(
        [graph.edge(edge)],
        [graph.edge(target) for target in targets],
        [value.to(dtype=meta.dtype, device=meta.device)],
        retain_graph=True,
        allow_unused=True,
    )


def children_of(graph: Graph, edge: Edge, part: Contribution) -> Found:
    """Through one operation."""
    number = edge[0]
    name, children = graph.names[number], graph.children[number]
    if isinstance(part, Sum):
        return [gain for one in part.parts for gain in children_of(graph, edge, one)]
    if name in SAME or name in VIEWS:
        return [(children[0], part)]
    if name in TURNED:
        return [(children[0], turned(part))]
    if name in RULES:
        shapes = [graph.shape(child) if child[0] >= 0 else None for child in children]
        gains = RULES[name](graph.nodes[number], part, shapes)
        return [(c, gain) for c, gain in zip(children, gains, strict=True) if gain is not None]
    (child,) = [c for c in children if c[0] >= 0]
    (factor,) = backward(graph, edge, [child], torch.ones(graph.shape(edge)))
    if factor is None:
        return []
    if is_own(name):
        refuse_unless_pointwise(graph, edge, child, factor)
    return [(child, times(part, wide(factor)))]


def refuse_unless_pointwise(graph: Graph, edge: Edge, child: Edge, factor: Tensor) -> None:
    """A gradient of random numbers, of a random size, tells a pointwise and linear backward.

    It is tried at first and now and then.  Of a function that passes though it is none, norms and
    sums come from `factor` all the same.
    """
    key = graph.names[edge[0]], tuple(factor.shape)
    if key in _tried and random.random() > TRIED_AGAIN:
        return
    stride, size = random.uniform(0.1, 0.9), 10.0 ** random.randint(-4, 4)
    numbers = torch.arange(factor.numel(), dtype=torch.float64, device=factor.device)
    value = numbers.mul_(stride).frac_().add_(0.5).mul_(size).to(factor.dtype).view(factor.shape)
    (result,) = backward(graph, edge, [child], value)
    value *= factor
    if result is None or not (torch.equal(result, value) or torch.allclose(result, value, atol=0)):
        _refused.add(key[0])
        raise Unstructured
    _tried.add(key)


def turned(part: Contribution) -> Contribution:
    if isinstance(part, (Outer, Ragged, Single)):
        return part.transposed()
    if isinstance(part, Scaled):
        return Scaled(part.part.transposed(), part.factor.t())
    if isinstance(part, Spread):
        return Spread(part.coefficients.transpose(1, 2), part.shared.t())
    return Dense(part.dense().transpose(1, 2))


def times(part: Contribution, factor: Tensor) -> Contribution:
    """Entries times a factor that all records share, which is broadcast."""
    if isinstance(part, Dense):
        return Dense(part.values * factor)
    if isinstance(part, Spread):
        return Spread(part.coefficients, part.shared * factor)
    if isinstance(part, Scaled):
        return Scaled(part.part, part.factor * factor)
    if isinstance(part, Lookup):
        if factor.dim() == 2 and factor.shape[0] > 1:
            factor = factor.expand(part.num_rows, -1)[part.index.clamp(min=0)]
        return Lookup(part.index, part.rows * factor, part.num_rows)
    part = plain(part)
    sizes = [1] * (2 - factor.dim()) + list(factor.shape)
    factor = factor.view(sizes)
    if sizes[1] == 1:
        return product(part, part.left * factor.view(-1), part.right)
    if sizes[0] == 1:
        return product(part, part.left, part.right * factor.view(-1))
    return Scaled(product(part, part.left, part.right), factor)


def plain(part: Contribution) -> Outer | Single:
    """A matrix product, with all its positions."""
    if isinstance(part, Ragged):
        part = part.as_outer()
    if not isinstance(part, (Outer, Single)) or len(part.shape) != 2:
        raise Unstructured
    return part


def product(like: Outer | Single, left: Tensor, right: Tensor) -> Outer | Single:
    """Other factors; without the bias, which is formed on its own."""
    if isinstance(like, Single):
        return Single(left, right, like.grads_are_left)
    made = copy.copy(like)
    made.left, made.right, made.bias, made.kept, made.shared = left, right, None, None, False
    made.shape = left.shape[-1], right.shape[-1]
    return made


def again(part: Contribution) -> Contribution:
    """The same for another parameter: sums may write to the gradients that they alone hold."""
    if isinstance(part, Scaled):
        return Scaled(product(part.part, part.part.left, part.part.right), part.factor)
    if isinstance(part, (Outer, Ragged, Single)):
        part = plain(part)
        return product(part, part.left, part.right)
    return part


def gained(
    part: Contribution, factor: Tensor | None, shape: tuple[int, ...] | None
) -> Contribution | None:
    """For a child of this shape: times the factor, summed where the child was broadcast."""
    if shape is None:
        return None
    whole = part_shape(part)
    if shape == whole:
        return again(part) if factor is None else times(part, wide(factor))
    factor = torch.ones(()) if factor is None else wide(factor)
    full = (*[1] * (len(whole) - len(shape)), *shape)
    if any(few not in (1, many) for few, many in zip(full, whole, strict=True)):
        raise Unstructured
    values = inner(part, factor.expand(whole), full)
    return Dense(values.view(len(values), *shape))


def part_shape(part: Contribution) -> tuple[int, ...]:
    if isinstance(part, Lookup):
        return part.num_rows, part.rows.shape[-1]
    if isinstance(part, Dense):
        return tuple(part.values.shape[1:])
    if isinstance(part, Spread):
        return tuple(part.shared.shape)
    if isinstance(part, Scaled):
        return tuple(part.factor.shape)
    return tuple(plain(part).shape)


# A rule gives what each child of a node gains; `shapes` are those of the children, None for
# those that want nothing.
Gains = Sequence[Contribution | None]
Shapes = Sequence[tuple[int, ...] | None]


def of_mul(node: Node, part: Contribution, shapes: Shapes) -> Gains:
    dtype = summed_in(node._input_metadata[0].dtype)
    factors = [
        f if f is None or f.is_floating_point() else f.to(dtype)  # a mask of bool
        for f in (node._saved_other, node._saved_self)
    ]
    return [gained(part, f, shape) for f, shape in zip(factors, shapes, strict=True)]


def of_div(node: Node, part: Contribution, shapes: Shapes) -> Gains:
    above, below = node._saved_self, node._saved_other
    over = below if shapes[1] is None else -above / below.square()
    return [gained(part, below.reciprocal(), shapes[0]), gained(part, over, shapes[1])]


def of_add(node: Node, part: Contribution, shapes: Shapes, sign: float = 1) -> Gains:
    more = torch.tensor(sign * float(node._saved_alpha))
    return [gained(part, None, shapes[0]), gained(part, more, shapes[1])]


def of_sub(node: Node, part: Contribution, shapes: Shapes) -> Gains:
    return of_add(node, part, shapes, -1)


def of_expand(node: Node, part: Contribution, shapes: Shapes) -> Gains:
    return [gained(part, None, shapes[0])]


def of_mm(node: Node, part: Contribution, shapes: Shapes) -> Gains:
    """Of A B: G B^T and A^T G, each a sum over the same positions."""
    part = plain(part)
    gains: list[Contribution | None] = [None, None]
    if shapes[0] is not None:
        gains[0] = product(part, part.left, wide(part.right) @ wide(node._saved_mat2).t())
    if shapes[1] is not None:
        gains[1] = product(part, wide(part.left) @ wide(node._saved_self), part.right)
    return gains


def of_weight_norm(node: Node, part: Contribution, shapes: Shapes) -> Gains:
    """Of g v / |v|, with norms of rows or columns: what lies along v goes to g, the rest to v."""
    v, g, size = (wide(t) for t in (node._saved_v, node._saved_g, node._saved_result1))
    unit = v / size
    along = inner(part, unit, g.shape)
    gains: list[Contribution | None] = [None, None]
    if shapes[0] is not None:
        gains[0] = Sum([times(part, g / size), Spread(-along, unit * (g / size))])
    if shapes[1] is not None:
        gains[1] = Dense(along)
    return gains


def of_matrix_exp(node: Node, part: Contribution, shapes: Shapes) -> Gains:
    """Some positions for each that there was."""
    part = plain(part)
    outer = part.as_outer() if isinstance(part, Single) else part
    rows = of_matrix_exp_rows(wide(node._saved_self), wide(outer.left), wide(outer.right))
    if rows is None:
        raise Unstructured
    return [product(outer, *rows)]


RULES: dict[str, Callable[..., Gains]] = {
    "MulBackward0": of_mul,
    "DivBackward0": of_div,
    "AddBackward0": of_add,
    "SubBackward0": of_sub,
    "ExpandBackward0": of_expand,
    "MmBackward0": of_mm,
    "LinalgMatrixExpBackward0": of_matrix_exp,
    "WeightNormInterfaceBackward0": of_weight_norm,
}
