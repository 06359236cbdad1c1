"""How operations on parameters run for all rows of a batch, and what rows add to parameters.

As in `rules/`, but rows of a record may lie anywhere: what was saved is sorted by `Owners` when the
output gradient is there.  A rule returns `NotImplemented` for a form that it does not know.

Letters: m row, n record, i features in, o features out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .contributions import Bias, Dense
from .lookup import Lookup
from .owners import Owners
from .precision import as_autocast
from .rules.convolution import by_name, spread, sum_of_positions
from .rules.matrix import parsed, rows_by_rows
from .rules.patches import Patches, Settings
from .rules.physical import detached
from .rules.recurrent import Cell, gru_gates, lstm_gates, relu_gates, tanh_gates

if TYPE_CHECKING:
    from .recorder import Uses
    from .rows import RowRecorder

BROADCASTS = ("add", "sub", "mul", "div", "truediv", "true_divide", "pow", "floordiv", "mod")
ELEMENTWISE = frozenset(
    {before + name for name in BROADCASTS for before in ("", "r", "i")}
    | {"subtract", "multiply", "divide", "where", "maximum", "minimum", "max", "min", "lerp"}
    | {"addcmul", "addcdiv", "atan2", "hypot", "logaddexp", "clamp", "xlogy", "masked_fill"}
)


def linear(rec: RowRecorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if rec.is_shared(input) or weight.dim() != 2:
        return NotImplemented
    if weight.requires_grad and not rec.is_shared(weight):  # made from records
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
    x, w, b = as_autocast(x, *detached(weight, bias))
    y = F.linear(x, w if turned else w.t(), b)
    inputs = x.detach()

    def uses(owners: Owners, grad: Tensor) -> Uses:
        return products(owners, inputs.reshape(-1, inputs.shape[-1]), grad, weight, bias, turned)

    return rec.tap(rule, y, y.dim() - 1, [weight, bias], uses, [inputs])


def products(
    owners: Owners,
    inputs_mi: Tensor,
    grad_mo: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    turned: bool = True,
) -> Uses:
    """Sums over the rows of each record of x_i g_o, and of g_o."""
    product = rows_by_rows(owners.rows(inputs_mi), owners.rows(grad_mo), owners.num_records)
    part = product.with_bias() if bias is not None and bias.requires_grad else None
    if weight.requires_grad:
        yield weight, product.transposed() if turned else product
    if part is not None:
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


def einsum(rec: RowRecorder, equation: str, operands: Any, *more: Any, **kwargs: Any) -> Any:
    """Two operands, one of parameters: a product of matrices, one for each group."""
    given = (*operands, *more) if isinstance(operands, (list, tuple)) else (operands, *more)
    terms = parsed(equation, len(given))
    if terms is None or sum(map(rec.is_shared, given)) != 1:
        return NotImplemented
    first, second, result = terms
    x, weight = given
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


def convolution(dims: int, transposed: bool = False) -> Callable[..., Any]:
    """torch.conv1d and the like: frames are rows."""
    names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
    defaults = {"output_padding": 0, "groups": 1, "dilation": 1}

    def rule(
        rec: RowRecorder,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        *more: Any,
        **named: Any,
    ) -> Any:
        if rec.is_shared(input) or input.dim() not in (dims + 1, dims + 2):
            return NotImplemented
        other = defaults | dict(zip(names, more, strict=False)) | named
        dilation, ahead = spread(other["dilation"], dims), []
        if isinstance(padding, str):
            padding, ahead = by_name(padding, weight.shape[2:], dilation)
        sizes = [spread(stride, dims), spread(padding, dims), dilation]
        settings = Settings(
            *sizes, transposed, spread(other["output_padding"], dims), other["groups"]
        )
        return convolved(rec, F.pad(input, ahead) if any(ahead) else input, weight, bias, settings)

    return rule


def convolved(
    rec: RowRecorder, input: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings
) -> Tensor:
    x, w, b = as_autocast(input, *detached(weight, bias))
    frames = x.reshape(-1, *x.shape[1 - weight.dim() :])
    y, inputs = settings.run(frames, w, b), frames.detach()
    shape = y.shape

    def uses(owners: Owners, grad: Tensor) -> Uses:
        n, part = owners.num_records, None
        grad, x = (owners.rows(t).flatten(0, 1) for t in (grad.reshape(shape), inputs))
        if bias is not None and bias.requires_grad:
            part = Bias(n, lambda: sum_of_positions(grad, n))
        if weight.requires_grad:
            yield weight, Patches(x, grad, n, settings, tuple(weight.shape), part)
        if part is not None:
            yield bias, part

    y = rec.tap("convolution", y, 1, [weight, bias], uses, [inputs])
    return y.reshape(*x.shape[: 1 - weight.dim()], *y.shape[1:])


def affine(
    rec: RowRecorder,
    rule: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Sequence[int],
) -> Tensor:
    """x * weight + bias, of normalised rows x; parameters are broadcast in this shape."""
    y, axes, normalised = x, x.dim() - len(shape), x.detach()
    w, b = detached(weight, bias)
    if w is not None:
        y = y * w.reshape(shape)
    if b is not None:
        y = y + b.reshape(shape)

    def uses(owners: Owners, grad: Tensor) -> Uses:
        rows_of = normalised.reshape(-1, *normalised.shape[axes:])
        grad = grad.reshape(rows_of.shape)
        for parameter, factor in ((weight, rows_of), (bias, None)):
            if parameter is not None and parameter.requires_grad:
                rows = grad if factor is None else grad * factor
                sums = owners.sums(rows.sum_to_size(len(rows), *shape))
                yield parameter, Dense(sums.reshape(-1, *parameter.shape))

    return rec.tap(rule, y, axes, [weight, bias], uses)


def layer_norm(
    rec: RowRecorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    x = torch.layer_norm(input, normalized_shape, None, None, eps)
    return affine(rec, "layer_norm", x, weight, bias, normalized_shape)


def rms_norm(
    rec: RowRecorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    x = torch.rms_norm(input, normalized_shape, None, eps)
    return affine(rec, "rms_norm", x, weight, None, normalized_shape)


def group_norm(
    rec: RowRecorder,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    x = torch.group_norm(input, num_groups, None, None, eps)
    return affine(rec, "group_norm", x, weight, bias, by_channel(x))


def statistics_norm(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """torch.batch_norm and torch.instance_norm."""

    def rule(
        rec: RowRecorder, input: Tensor, weight: Tensor | None, bias: Tensor | None, *settings: Any
    ) -> Any:
        x = function(input, None, None, *settings)
        return affine(rec, function.__name__, x, weight, bias, by_channel(x))

    return rule


def by_channel(x: Tensor) -> list[int]:
    return [x.shape[1], *[1] * (x.dim() - 2)]


def prelu(rec: RowRecorder, input: Tensor, weight: Tensor) -> Any:
    with rec:
        slope = weight.reshape(by_channel(input)) if len(weight) > 1 else weight
        return torch.where(input > 0, input, slope * input)


def embedding(
    rec: RowRecorder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if scale_grad_by_freq:
        return NotImplemented
    y, numbers = torch.embedding(weight.detach(), indices), indices.detach()

    def uses(owners: Owners, grad: Tensor) -> Uses:
        places = numbers.masked_fill(numbers == padding_idx, -1) if padding_idx >= 0 else numbers
        places = owners.rows(places.reshape(-1) + 1) - 1  # rows that are not there: -1
        yield weight, Lookup(places, owners.rows(grad), len(weight))

    return rec.tap("embedding", y, indices.dim(), [weight], uses, [numbers])


def getitem(rec: RowRecorder, input: Tensor, index: Any) -> Any:
    """Rows of a table by their numbers."""
    if not isinstance(index, Tensor) or index.dtype is not torch.long or not rec.is_shared(input):
        return NotImplemented
    with rec:
        table = input.reshape(len(input), -1)
        rows = F.embedding(index % len(input), table)
        return rows.reshape(*index.shape, *input.shape[1:])


def index_select(rec: RowRecorder, input: Tensor, dim: int, index: Tensor) -> Any:
    return getitem(rec, input, index) if dim == 0 else NotImplemented


def setitem(rec: RowRecorder, input: Tensor, index: Any, value: Any) -> Any:
    if not rec.is_shared(value):
        return NotImplemented
    with torch.no_grad():
        shape = input[index].shape
    input[index] = rec.expanded(value, shape, "setitem")
    return None


def embedding_bag(
    rec: RowRecorder,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Rows are looked up, and summed by bag."""
    if scale_grad_by_freq or max_norm is not None or mode == "max":
        return NotImplemented
    with rec:
        count, places = len(input), torch.arange(input.numel(), device=input.device)
        if offsets is None:
            bags = places // input.shape[1]
        else:
            count = len(offsets) - include_last_offset
            bags = torch.bucketize(places, offsets[:count], right=True) - 1
        rows = F.embedding(input.flatten(), weight, padding_idx)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.reshape(-1, 1)
        counted = (input.flatten() != (-1 if padding_idx is None else padding_idx)).to(rows)
        rows = rows * counted.unsqueeze(1)
        total = rows.new_zeros(count, rows.shape[1]).index_add(0, bags, rows)
        if mode == "sum":
            return total
        sizes = counted.new_zeros(count).index_add(0, bags, counted).clamp(min=1)
        return total / sizes.unsqueeze(1)


def layers(cell: Cell, states: int) -> Callable[..., Any]:
    """torch.lstm and the like, packed or not."""

    def rule(rec: RowRecorder, input: Tensor, *rest: Any) -> Any:
        if not isinstance(rest[2], bool):
            sizes, hx, params, *settings = rest
            hx = hx if states > 1 else [hx]
            return stacked(rec, cell, input, sizes.tolist(), hx, params, *settings)
        hx, params, *settings, batch_first = rest
        hx = hx if states > 1 else [hx]
        steps = input.transpose(0, 1) if batch_first else input
        sizes = [steps.shape[1]] * len(steps)
        y, *ends = stacked(rec, cell, steps.flatten(0, 1), sizes, hx, params, *settings)
        y = y.unflatten(0, steps.shape[:2])
        return y.transpose(0, 1) if batch_first else y, *ends

    return rule


def stacked(
    rec: RowRecorder,
    cell: Cell,
    data: Tensor,
    sizes: list[int],
    hx: Sequence[Tensor],
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """Layers and directions, over rows that are packed: `sizes` of them at each step."""
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    hx = [rec.of_records(h, "the first state") for h in hx]
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            weights = params[k * each : (k + 1) * each]
            state = tuple(h[k] for h in hx)
            output, end = one_layer(
                rec, cell, data, sizes, state, weights, has_biases, direction == 1
            )
            outputs.append(output)
            ends.append(end)
        data = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            data = F.dropout(data, dropout)
    return data, *(torch.stack(column) for column in zip(*ends, strict=True))


def one_layer(
    rec: RowRecorder,
    cell: Cell,
    data: Tensor,
    sizes: list[int],
    start: tuple[Tensor, ...],
    weights: Any,
    has_biases: bool,
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The products with the hidden states are tapped for all steps at once.

    Zeros are added to them that get the same gradient.
    """
    input_weight, hidden_weight, *rest = weights
    input_bias, hidden_bias = rest[:2] if has_biases else (None, None)
    projection = rest[-1] if len(rest) % 2 else None
    w, b = detached(hidden_weight, hidden_bias)
    hidden: list[Any] = [None] * len(sizes)

    def uses(owners: Owners, grad: Tensor) -> Uses:
        return products(owners, torch.cat(hidden), grad, hidden_weight, hidden_bias)

    gates = times(rec, "recurrent", data, input_weight, input_bias, turned=True)
    zeros = gates.new_zeros(gates.shape)
    zeros = rec.tap("recurrent", zeros, 1, [hidden_weight, hidden_bias], uses)
    steps = list(zip(gates.split(sizes), zeros.split(sizes), strict=True))
    outputs: list[Any] = [None] * len(sizes)
    order = range(len(sizes))
    state, ended = tuple(s[: sizes[-1 if backwards else 0]] for s in start), []
    for t in reversed(order) if backwards else order:
        size, before = sizes[t], len(state[0])
        if size > before:
            pairs = zip(state, start, strict=True)
            state = tuple(torch.cat([s, first[before:size]]) for s, first in pairs)
        elif size < before:
            ended.append(tuple(s[size:] for s in state))
            state = tuple(s[:size] for s in state)
        inputs, nothing = steps[t]
        hidden[t] = state[0].detach()  # with its graph it would hold itself
        state = cell(inputs, F.linear(state[0], w, b) + nothing, state)
        if projection is not None:
            state = (times(rec, "recurrent", state[0], projection, turned=True), *state[1:])
        outputs[t] = state[0]
    columns = zip(state, *reversed(ended), strict=True)
    return torch.cat(outputs), tuple(torch.cat(c) if ended else c[0] for c in columns)


def one_cell(cell: Cell, states: int) -> Callable[..., Any]:
    """torch.lstm_cell and the like."""

    def rule(
        rec: RowRecorder,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        state = tuple(rec.of_records(h, "the first state") for h in (hx if states > 1 else [hx]))
        gates = times(rec, "recurrent", input, w_ih, b_ih, turned=True)
        hidden = times(rec, "recurrent", state[0], w_hh, b_hh, turned=True)
        result = cell(gates, hidden, state)
        return result if states > 1 else result[0]

    return rule


# The torch functions that each rule serves; some are reached under several names.
FUNCTIONS: dict[Callable[..., Any], tuple[Any, ...]] = {
    linear: (F.linear,),
    matmul: (
        torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm,
        torch.mv, Tensor.mv,
    ),
    reversed_matmul: (Tensor.__rmatmul__,),
    addmm: (torch.addmm, Tensor.addmm),
    einsum: (torch._C._VariableFunctions.einsum,),
    convolution(1): (torch.conv1d,),
    convolution(2): (torch.conv2d,),
    convolution(3): (torch.conv3d,),
    convolution(1, transposed=True): (torch.conv_transpose1d,),
    convolution(2, transposed=True): (torch.conv_transpose2d,),
    convolution(3, transposed=True): (torch.conv_transpose3d,),
    layer_norm: (torch.layer_norm,),
    rms_norm: (torch.rms_norm, F.rms_norm),
    group_norm: (torch.group_norm,),
    statistics_norm(torch.batch_norm): (torch.batch_norm,),
    statistics_norm(torch.instance_norm): (torch.instance_norm,),
    prelu: (torch.prelu,),
    embedding: (torch.embedding,),
    embedding_bag: (F.embedding_bag,),
    getitem: (Tensor.__getitem__,),
    index_select: (torch.index_select, Tensor.index_select),
    setitem: (Tensor.__setitem__,),
    layers(lstm_gates, 2): (torch.lstm,),
    layers(gru_gates, 1): (torch.gru,),
    layers(tanh_gates, 1): (torch.rnn_tanh,),
    layers(relu_gates, 1): (torch.rnn_relu,),
    one_cell(lstm_gates, 2): (torch.lstm_cell,),
    one_cell(gru_gates, 1): (torch.gru_cell,),
    one_cell(tanh_gates, 1): (torch.rnn_tanh_cell,),
    one_cell(relu_gates, 1): (torch.rnn_relu_cell,),
}  # fmt: skip
RULES = {function: rule for rule, functions in FUNCTIONS.items() for function in functions}
