"""Recurrent networks: LSTM, GRU and plain ones, and their cells.

The products with the inputs are taken for all steps at once, by the rule of matrix products.  What
is left of a layer, or of a cell, is one function (recurrence.py).  Where that does not serve
(autocast, transforms of the user's own), it is written out in matrix products, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .matrix import of_product
from .physical import are_records, detached, physically
from .recurrence import Gru, Lstm, Plain

if TYPE_CHECKING:
    from ..recorder import Recorder, Uses

# (gates from the inputs, gates from the hidden state, state) -> state; its first is the output
Cell = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def lstm_gates(inputs: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (inputs + hidden).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_gates(inputs: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (r, z, n), (hr, hz, hn) = inputs.chunk(3, -1), hidden.chunk(3, -1)
    n = (n + (r + hr).sigmoid() * hn).tanh()
    return (n + (z + hz).sigmoid() * (state[0] - n),)


def tanh_gates(inputs: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((inputs + hidden).tanh(),)


def relu_gates(inputs: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((inputs + hidden).relu(),)


def layers(cell: Cell, states: int) -> Callable[..., Any]:
    """The rule of torch.lstm and the like, for inputs that are not packed."""

    def rule(rec: Recorder, input: Tensor, hx: Any, params: Any, *settings: Any) -> Any:
        if not isinstance(params, (list, tuple)) or not any(are_records(input)):
            return NotImplemented  # packed: batch sizes stand where the state is here
        state = [rec.for_each(h, "recurrent") for h in (hx if states > 1 else [hx])]
        with rec:
            return run(rec, cell, input, state, params, *settings)

    return rule


def run(
    rec: Recorder,
    cell: Cell,
    input: Tensor,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    steps = input.transpose(0, 1) if batch_first and input.dim() == 3 else input
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            state = tuple(h[k] for h in hx)
            weights = params[k * each : (k + 1) * each]
            output, end = one_layer(rec, cell, steps, state, weights, has_biases, direction == 1)
            outputs.append(output)
            ends.append(end)
        steps = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            steps = F.dropout(steps, dropout)
    output = steps.transpose(0, 1) if batch_first and input.dim() == 3 else steps
    return output, *(torch.stack(column) for column in zip(*ends, strict=True))


def one_layer(
    rec: Recorder,
    cell: Cell,
    inputs: Tensor,
    state: tuple[Tensor, ...],
    weights: Any,
    has_biases: bool,
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    input_weight, hidden_weight, *rest = weights
    input_bias, hidden_bias = rest[:2] if has_biases else (None, None)
    projection = rest[-1] if len(rest) % 2 else None
    gates = F.linear(inputs, input_weight, input_bias)
    gates = gates.flip(0) if backwards else gates
    outputs, end = steps(rec, cell, gates, state, hidden_weight, hidden_bias, projection)
    return outputs.flip(0) if backwards else outputs, end


def steps(
    rec: Recorder,
    cell: Cell,
    gates: Tensor,
    state: tuple[Tensor, ...],
    weight: Tensor,
    bias: Tensor | None = None,
    projection: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """From the gates of the inputs [t, b, g] and a first state: outputs, and the last state."""
    shared = [t for t in (weight, bias, projection) if t is not None]
    same = len({t.dtype for t in (gates, *state, *shared)}) == 1
    plain = all(are_records(gates, *state)) and not any(are_records(*shared))
    if same and plain and rec.serves(gates, *state, *shared) and not autocasts(gates):
        with torch._C.DisableTorchFunction(), physically():
            outputs, *cells = at_once(rec, cell, gates, state, weight, bias, projection)
        return outputs, (outputs[-1], *cells)
    outputs = []
    for inputs in gates.unbind(0):
        state = cell(inputs, F.linear(state[0], weight, bias), state)
        if projection is not None:
            state = (F.linear(state[0], projection), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs), state


def autocasts(tensor: Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type)


def at_once(
    rec: Recorder,
    cell: Cell,
    gates: Tensor,
    state: tuple[Tensor, ...],
    weight: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
) -> list[Tensor]:
    """Weights are cut off; zeros that are added to their products get the same gradient."""
    n, is_batch = rec.num_samples, gates.dim() == 3
    values, first = rec.physical(gates), [rec.physical(h) for h in state]
    if not is_batch:
        values, first = values.unsqueeze(2), [h.unsqueeze(1) for h in first]
    w, b, p = detached(weight, bias, projection)
    kept: list[Tensor] = []

    def tapped(product: int, width: int, weight: Tensor, bias: Tensor | None) -> Tensor:
        def uses(grad: Tensor) -> Uses:
            return of_product(kept[product], grad, n, weight, bias, turned=True)

        zeros = values.new_zeros(()).expand(*values.shape[:-1], width)
        return rec.tap("recurrent", zeros, [weight, bias], uses)

    offset = tapped(0, len(weight), weight, bias)
    if cell is lstm_gates:
        of_output = None if projection is None else tapped(1, len(projection), projection, None)
        outputs, last = Lstm.apply(values, offset, of_output, *first, w, b, p, kept)  # type: ignore[misc]
        results = [outputs, last]
    elif cell is gru_gates:
        results = [Gru.apply(values, offset, *first, w, b, kept)]
    else:
        results = [Plain.apply(values, offset, *first, w, b, cell is relu_gates, kept)]
    if not is_batch:
        results = [result.squeeze(-2) for result in results]
    return [rec.of_records(result) for result in results]


def one_cell(cell: Cell, states: int) -> Callable[..., Any]:
    """The rule of torch.lstm_cell and the like."""

    def rule(
        rec: Recorder,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        if not any(are_records(input)):
            return NotImplemented
        state = tuple(rec.for_each(h, "recurrent") for h in (hx if states > 1 else [hx]))
        with rec:
            gates = F.linear(input, w_ih, b_ih).unsqueeze(0)
            _, result = steps(rec, cell, gates, state, w_hh, b_hh)
            return result if states > 1 else result[0]

    return rule


lstm, lstm_cell = layers(lstm_gates, 2), one_cell(lstm_gates, 2)
gru, gru_cell = layers(gru_gates, 1), one_cell(gru_gates, 1)
rnn_tanh, rnn_tanh_cell = layers(tanh_gates, 1), one_cell(tanh_gates, 1)
rnn_relu, rnn_relu_cell = layers(relu_gates, 1), one_cell(relu_gates, 1)
