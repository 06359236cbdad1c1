"""Recurrent networks: LSTM, GRU and plain ones, and their cells.

They are written out in matrix products, which have a rule: the products with the inputs are taken
for all steps at once, those with the hidden state step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .physical import are_records

if TYPE_CHECKING:
    from ..recorder import Recorder

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
            return run(cell, input, state, params, *settings)

    return rule


def run(
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
            output, end = one_layer(cell, steps, state, weights, has_biases, direction == 1)
            outputs.append(output)
            ends.append(end)
        steps = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            steps = F.dropout(steps, dropout)
    output = steps.transpose(0, 1) if batch_first and input.dim() == 3 else steps
    return output, *(torch.stack(column) for column in zip(*ends, strict=True))


def one_layer(
    cell: Cell,
    steps: Tensor,
    state: tuple[Tensor, ...],
    weights: Any,
    has_biases: bool,
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    input_weight, hidden_weight, *rest = weights
    input_bias, hidden_bias = rest[:2] if has_biases else (None, None)
    projection = rest[-1] if len(rest) % 2 else None
    gates = F.linear(steps, input_weight, input_bias).unbind(0)
    outputs = []
    for inputs in reversed(gates) if backwards else gates:
        hidden = F.linear(state[0], hidden_weight, hidden_bias)
        state = cell(inputs, hidden, state)
        if projection is not None:
            state = (F.linear(state[0], projection), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


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
            hidden = F.linear(state[0], w_hh, b_hh)
            result = cell(F.linear(input, w_ih, b_ih), hidden, state)
            return result if states > 1 else result[0]

    return rule


lstm, lstm_cell = layers(lstm_gates, 2), one_cell(lstm_gates, 2)
gru, gru_cell = layers(gru_gates, 1), one_cell(gru_gates, 1)
rnn_tanh, rnn_tanh_cell = layers(tanh_gates, 1), one_cell(tanh_gates, 1)
rnn_relu, rnn_relu_cell = layers(relu_gates, 1), one_cell(relu_gates, 1)
