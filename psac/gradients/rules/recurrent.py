"""Recurrent networks: LSTM, GRU and plain ones, and their cells.

A layer in one direction, or a cell, is one autograd function (recurrence.py).  Where that does not
serve (autocast, transforms of the user's own), it is written out in matrix products, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.rules.matrix import of_product
from psac.gradients.rules.physical import are_records, detached, physically
from psac.gradients.rules.recurrence import Gru, Lstm, Plain, Weights
from psac.gradients.rules.selection import NeedsShapes

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder, Uses

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

    def rule(
        rec: Recorder,
        input: Tensor,
        hx: Any,
        params: Any,
        *settings: Any,
        length: Tensor | None = None,
    ) -> Any:
        """`length` is how many steps each record has, of those that there are."""
        if not isinstance(params, (list, tuple)) or not any(are_records(input)):
            return NotImplemented  # packed: batch sizes stand where the state is here
        state = [rec.for_each(h, "recurrent") for h in (hx if states > 1 else [hx])]
        with rec:
            return run(rec, cell, input, state, params, *settings, length=length)

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
    length: Tensor | None = None,
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
            output, end = one_layer(
                rec, cell, steps, state, weights, has_biases, direction == 1, length
            )
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
    given: Any,
    has_biases: bool,
    backwards: bool,
    length: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    projection = given[-1] if len(given) % 2 else None
    biases = given[2:4] if has_biases else (None, None)
    weights = Weights(given[0], given[1], biases[0], biases[1], projection)
    if not backwards:
        return steps(rec, cell, inputs, state, weights, length)
    if length is None:
        outputs, end = steps(rec, cell, inputs.flip(0), state, weights)
        return outputs.flip(0), end
    places = torch.arange(len(inputs), device=inputs.device)
    turned = torch.where(places < length, length - 1 - places, places)
    outputs, end = steps(rec, cell, inputs[turned], state, weights, length)
    return outputs[turned], end


def steps(
    rec: Recorder,
    cell: Cell,
    inputs: Tensor,
    state: tuple[Tensor, ...],
    weights: Weights,
    length: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """From inputs [t, b, i] and a first state: outputs, and the last state."""
    with torch._C.DisableTorchFunction():
        if serves(rec, inputs, state, weights):
            with physically():
                outputs, *last = at_once(rec, cell, inputs, state, weights, length)
            return outputs, tuple(last)
    if length is not None:
        rec.stop(NeedsShapes())
    outputs = []
    with rec:
        for gates in F.linear(inputs, weights.input, weights.input_bias).unbind(0):
            hidden = F.linear(state[0], weights.hidden, weights.hidden_bias)
            state = cell(gates, hidden, state)
            if weights.projection is not None:
                state = (F.linear(state[0], weights.projection), *state[1:])
            outputs.append(state[0])
        return torch.stack(outputs), state


def serves(rec: Recorder, inputs: Tensor, state: tuple[Tensor, ...], weights: Weights) -> bool:
    shared = [t for t in weights if t is not None]
    if not all(are_records(inputs, *state)) or any(are_records(*shared)):
        return False
    if any(t.dtype is not inputs.dtype for t in (*state, *shared)):
        return False
    autocasts = torch.is_autocast_enabled(inputs.device.type)
    return not autocasts and rec.serves(inputs, *state, *shared)


def at_once(
    rec: Recorder,
    cell: Cell,
    inputs: Tensor,
    state: tuple[Tensor, ...],
    weights: Weights,
    length: Tensor | None,
) -> list[Tensor]:
    """Weights are cut off; what is added to the gates tells their gradients."""
    n, values, first = rec.num_samples, rec.physical(inputs), [rec.physical(h) for h in state]
    is_batch = inputs.dim() == 3
    if not is_batch:
        values, first = values.unsqueeze(2), [h.unsqueeze(1) for h in first]
    kept: list[Tensor] = []

    def of_inputs(grad: Tensor) -> Uses:
        return of_product(values, grad, n, weights.input, weights.input_bias, turned=True)

    def of_hidden(grad: Tensor) -> Uses:
        return of_product(kept[0], grad, n, weights.hidden, weights.hidden_bias, turned=True)

    def of_both(grad: Tensor) -> Uses:
        yield from of_inputs(grad)
        yield from of_hidden(grad)

    def of_projection(grad: Tensor) -> Uses:
        assert weights.projection is not None
        return of_product(kept[1], grad, n, weights.projection, None, turned=True)

    def tapped(uses: Callable[[Tensor], Uses], *sources: Tensor | None) -> Tensor:
        width = next(len(source) for source in sources if source is not None)
        zeros = values.new_zeros(()).expand(*values.shape[:-1], width)
        return rec.tap("recurrent", zeros, sources, uses, [values])

    cut, cells, last_step, ended = Weights(*detached(*weights)), [], None, None
    if length is not None:
        last_step = rec.physical(length).flatten() - 1
        ended = torch.arange(values.shape[1], device=values.device) > last_step.unsqueeze(1)
        ended = ended.view(n, -1, 1, 1)
    in_inputs, in_hidden = weights[0::2][:2], weights[1::2]
    if cell is lstm_gates:
        zeros = tapped(of_both, *weights[:4])
        last = weights.projection
        of_last = None if last is None else tapped(of_projection, last)
        outputs, *cells = Lstm.apply(values, zeros, of_last, *first, cut, kept, ended)
    elif cell is gru_gates:
        zeros = tapped(of_inputs, *in_inputs), tapped(of_hidden, *in_hidden)
        outputs = Gru.apply(values, *zeros, *first, cut, kept)
    else:
        zeros = tapped(of_both, *weights[:4])
        outputs = Plain.apply(values, zeros, *first, cut, kept, cell is relu_gates)
    last_output = outputs[:, -1]
    if last_step is not None:
        last_output = outputs[torch.arange(n, device=values.device), last_step]
    results = [outputs, last_output, *cells]
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
        weights = Weights(w_ih, w_hh, b_ih, b_hh)
        _, result = steps(rec, cell, input.unsqueeze(0), state, weights)
        return result if states > 1 else result[0]

    return rule


lstm, lstm_cell = layers(lstm_gates, 2), one_cell(lstm_gates, 2)
gru, gru_cell = layers(gru_gates, 1), one_cell(gru_gates, 1)
rnn_tanh, rnn_tanh_cell = layers(tanh_gates, 1), one_cell(tanh_gates, 1)
rnn_relu, rnn_relu_cell = layers(relu_gates, 1), one_cell(relu_gates, 1)
