"""Recurrent networks and their cells, packed or not, written out step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.batched.owners import Owners
from psac.gradients.batched.products import products, times
from psac.gradients.rules.physical import detached
from psac.gradients.rules.recurrent import Cell, gru_gates, lstm_gates, relu_gates, tanh_gates

if TYPE_CHECKING:
    from psac.gradients.batched.recorder import RowRecorder
    from psac.gradients.vectorized.recorder import Uses


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
    cut: list[Any] = detached(hidden_weight, hidden_bias)
    w, b = cut
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


lstm, lstm_cell = layers(lstm_gates, 2), one_cell(lstm_gates, 2)
gru, gru_cell = layers(gru_gates, 1), one_cell(gru_gates, 1)
rnn_tanh, rnn_tanh_cell = layers(tanh_gates, 1), one_cell(tanh_gates, 1)
rnn_relu, rnn_relu_cell = layers(relu_gates, 1), one_cell(relu_gates, 1)
