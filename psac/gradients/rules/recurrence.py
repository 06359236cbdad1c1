"""All steps of a recurrent layer in one autograd function, with its own backward through time.

Written out in torch operations, a step is a dozen nodes of the graph.  Here it is one matrix
product and a few pointwise operations, forward and backward; what does not depend on the step
before is computed for all steps at once.  An LSTM whose weights stay in the cache runs in a
compiled loop, all of it.

A function gets inputs [n, t, b, i], zeros of the shape of the gates that are added to them, so that
they get the gates' gradients, a first state [n, b, h], and the weights, which get none.  It returns
outputs [n, t, b, h] and, for an LSTM, the last cell.  `kept` receives what weights of the hidden
state were multiplied with, [n, t, b, h].

Letters: n record, t step, b sequence of a record, m row (of a record and a sequence), i inputs,
g gates, h hidden.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from psac.gradients.kernels.loops import Loops, loops

sigmoid_backward = torch.ops.aten.sigmoid_backward.default
tanh_backward = torch.ops.aten.tanh_backward.default


class Weights(NamedTuple):
    """Of one layer in one direction."""

    input: Tensor  # [g, i]
    hidden: Tensor  # [g, h]
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None


def by_step(values_ntbx: Tensor) -> Tensor:
    """[n, t, b, x] -> [t, m, x], a view where that is possible."""
    return values_ntbx.transpose(0, 1).flatten(1, 2)


def by_record(values_tmx: Tensor, like_ntbx: Tensor) -> Tensor:
    """What `by_step` undoes."""
    n, _, b, _ = like_ntbx.shape
    return values_tmx.unflatten(1, (n, b)).transpose(0, 1)


def room_like(values_tmx: Tensor, like_ntbx: Tensor) -> Tensor:
    """Memory [t, m, x], laid out so that `by_record` is contiguous where it can be."""
    shape = *like_ntbx.shape[:-1], values_tmx.shape[-1]
    return by_step(values_tmx.new_empty(shape))


def room_for_states(first_nbh: Tensor, steps: int) -> Tensor:
    """[t + 1, m, h], of which the first is there."""
    first = first_nbh.flatten(0, 1)
    values = first.new_empty(steps + 1, *first.shape)
    values[0] = first
    return values


def loops_for(weights: Weights, gates: Tensor, *state: Tensor) -> Loops | None:
    """The compiled loops, where they serve and are faster."""
    compiled = loops()
    if compiled is None or weights.projection is not None:
        return None
    width = weights.hidden.shape[1]
    return compiled if compiled.serves_lstm(width, gates, weights.hidden, *state) else None


class Lstm(torch.autograd.Function):
    """Gates are i, f, g, o."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, zeros: Tensor, zeros_of_projection: Tensor | None,
        hidden: Tensor, cell: Tensor, weights: Weights, kept: list[Tensor],
        ended: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """Where a record has `ended`, its cell stays as it is."""
        steps, width = inputs.shape[1], cell.shape[-1]
        gates = F.linear(inputs, weights.input, weights.input_bias)
        if weights.hidden_bias is not None:
            gates.add_(weights.hidden_bias)
        if ended is not None:
            closed = torch.finfo(gates.dtype).max / 2  # whatever a hidden state adds
            gates[..., :width].masked_fill_(ended, -closed)
            gates[..., width : 2 * width].masked_fill_(ended, closed)
        states, cells = room_for_states(hidden, steps), room_for_states(cell, steps)
        squashed = torch.empty_like(cells[1:])
        full = states[1:] if weights.projection is None else torch.empty_like(squashed)
        ctx.compiled = loops_for(weights, gates, hidden, cell)
        if ctx.compiled is not None:
            ctx.compiled.lstm(gates, states, cells, squashed, weights.hidden)
        else:
            gates, turned = by_step(gates), weights.hidden.t()
            h, c, s, out = (part.unbind(0) for part in (states, cells, squashed, full))
            for t, total in enumerate(gates.unbind(0)):
                torch.addmm(total, h[t], turned, out=total)
                i, f, g, o = total.chunk(4, 1)
                total[:, : 2 * width].sigmoid_()
                torch.mul(f, c[t], out=c[t + 1]).addcmul_(i, g.tanh_())
                torch.mul(o.sigmoid_(), torch.tanh(c[t + 1], out=s[t]), out=out[t])
                if weights.projection is not None:
                    torch.mm(out[t], weights.projection.t(), out=h[t + 1])
        kept.append(by_record(states[:-1], inputs))
        if weights.projection is not None:
            kept.append(by_record(full, inputs))
        ctx.save_for_backward(gates, cells, squashed)
        ctx.weights = weights
        return by_record(states[1:], inputs).clone(), cells[-1].view(cell.shape).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, d_cell: Tensor) -> Any:
        weights, (gates, cells, squashed) = ctx.weights, ctx.saved_tensors
        width = cells.shape[-1]
        if ctx.compiled is not None:
            d_zeros, *first = ctx.compiled.lstm_backward(
                gates, cells, squashed, weights.hidden, d_outputs, d_cell
            )
            first = [d.view(d_cell.shape) for d in first]
            return of_inputs(ctx, d_zeros), d_zeros, None, *first, None, None, None
        i, f, g, o = gates.chunk(4, -1)
        # what each gate gets: of the cell's gradient, or (the last) of the output's
        of_gates = [
            sigmoid_backward(g, i), sigmoid_backward(cells[:-1], f), tanh_backward(i, g),
            sigmoid_backward(squashed, o),
        ]  # fmt: skip
        of_cell = torch.stack(of_gates[:3], 2).unbind(0)
        of_output, through = of_gates[3].unbind(0), tanh_backward(o, squashed).unbind(0)
        arriving, all_d_gates = by_step(d_outputs), room_like(gates, d_outputs)
        d_c, d_h = d_cell.flatten(0, 1), d_cell.new_zeros(())
        if weights.projection is not None:
            arriving = arriving.clone()  # gradients are added to it
        d_gates, passing, forgotten = all_d_gates.unbind(0), arriving.unbind(0), f.unbind(0)
        for_cell = all_d_gates.unflatten(-1, (4, width))[:, :, :3].unbind(0)
        for_output = all_d_gates[..., 3 * width :].unbind(0)
        for t in reversed(range(len(gates))):
            d_h = passing[t].add_(d_h) if weights.projection is not None else passing[t] + d_h
            d_full = d_h if weights.projection is None else d_h @ weights.projection
            d_c = torch.addcmul(d_c, d_full, through[t])
            torch.mul(of_cell[t], d_c.unsqueeze(1), out=for_cell[t])
            torch.mul(of_output[t], d_full, out=for_output[t])
            d_c, d_h = d_c * forgotten[t], d_gates[t] @ weights.hidden
        d_zeros = by_record(all_d_gates, d_outputs)
        d_projected = None if weights.projection is None else by_record(arriving, d_outputs)
        first = d_h.view(*d_cell.shape[:2], -1), d_c.view(d_cell.shape)
        return of_inputs(ctx, d_zeros), d_zeros, d_projected, *first, None, None, None


class Gru(torch.autograd.Function):
    """Gates are r, z, n; those of inputs and of the hidden state have gradients of their own."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, zeros_of_inputs: Tensor, zeros_of_hidden: Tensor,
        hidden: Tensor, weights: Weights, kept: list[Tensor],
    ) -> Any:  # fmt: skip
        steps, width = inputs.shape[1], hidden.shape[-1]
        gates = by_step(F.linear(inputs, weights.input, weights.input_bias))
        states, recalled = room_for_states(hidden, steps), torch.empty_like(gates)
        turned, h, total = weights.hidden.t(), states.unbind(0), recalled.unbind(0)
        for t, gate in enumerate(gates.unbind(0)):
            if weights.hidden_bias is None:
                torch.mm(h[t], turned, out=total[t])
            else:
                torch.addmm(weights.hidden_bias, h[t], turned, out=total[t])
            r, z, new = gate.chunk(3, 1)
            gate[:, : 2 * width].add_(total[t][:, : 2 * width]).sigmoid_()
            new.addcmul_(r, total[t][:, 2 * width :]).tanh_()
            torch.lerp(new, h[t], z, out=h[t + 1])
        kept.append(by_record(states[:-1], inputs))
        ctx.save_for_backward(gates, states, recalled[..., 2 * width :])
        ctx.weights = weights
        return by_record(states[1:], inputs).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor) -> Any:
        weights, (gates, states, new_recalled) = ctx.weights, ctx.saved_tensors
        width = states.shape[-1]
        r, z, new = gates.chunk(3, -1)
        of_new = tanh_backward(1 - z, new)
        of_r = sigmoid_backward(of_new * new_recalled, r)
        of_z = sigmoid_backward(states[:-1] - new, z)
        of_hidden = torch.stack([of_r, of_z, of_new * r], 2).unbind(0)
        all_d_gates, from_inputs = room_like(gates, d_outputs), room_like(gates, d_outputs)
        d_gates, passing = all_d_gates.unbind(0), by_step(d_outputs).unbind(0)
        d_by_gate, kept, d_h = (
            all_d_gates.unflatten(-1, (3, width)).unbind(0),
            z.unbind(0),
            z.new_zeros(()),
        )
        for_new = from_inputs[..., 2 * width :].unbind(0)
        news = of_new.unbind(0)
        for t in reversed(range(len(gates))):
            d_h = passing[t] + d_h
            torch.mul(of_hidden[t], d_h.unsqueeze(1), out=d_by_gate[t])
            torch.mul(news[t], d_h, out=for_new[t])
            d_h = torch.addmm(d_h * kept[t], d_gates[t], weights.hidden)
        from_inputs[..., : 2 * width] = all_d_gates[..., : 2 * width]
        d_inputs, d_hidden = by_record(from_inputs, d_outputs), by_record(all_d_gates, d_outputs)
        n, _, b, _ = d_outputs.shape
        first = d_h.view(n, b, width)
        return of_inputs(ctx, d_inputs), d_inputs, d_hidden, first, None, None


class Plain(torch.autograd.Function):
    """h = tanh(gates), or relu."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, zeros: Tensor, hidden: Tensor, weights: Weights,
        kept: list[Tensor], is_relu: bool,
    ) -> Any:  # fmt: skip
        gates = F.linear(inputs, weights.input, weights.input_bias)
        gates = by_step(gates if weights.hidden_bias is None else gates.add_(weights.hidden_bias))
        states, turned = room_for_states(hidden, len(gates)), weights.hidden.t()
        h = states.unbind(0)
        for t, gate in enumerate(gates.unbind(0)):
            total = torch.addmm(gate, h[t], turned, out=h[t + 1])
            total.relu_() if is_relu else total.tanh_()
        kept.append(by_record(states[:-1], inputs))
        ctx.save_for_backward(states)
        ctx.weights, ctx.is_relu = weights, is_relu
        return by_record(states[1:], inputs).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor) -> Any:
        weights, outputs = ctx.weights, ctx.saved_tensors[0][1:]
        if ctx.is_relu:
            shares = (outputs <= 0).logical_not().to(outputs.dtype)
        else:
            shares = 1 - outputs.square()
        all_d_gates, d_h = room_like(outputs, d_outputs), outputs.new_zeros(())
        d_gates, passing, of_gates = (
            all_d_gates.unbind(0),
            by_step(d_outputs).unbind(0),
            shares.unbind(0),
        )
        for t in reversed(range(len(outputs))):
            d_h = torch.mul(passing[t] + d_h, of_gates[t], out=d_gates[t]) @ weights.hidden
        d_zeros = by_record(all_d_gates, d_outputs)
        n, _, b, _ = d_outputs.shape
        first = d_h.view(n, b, outputs.shape[-1])
        return of_inputs(ctx, d_zeros), d_zeros, first, None, None, None


def of_inputs(ctx: Any, d_gates: Tensor) -> Tensor | None:
    return d_gates @ ctx.weights.input if ctx.needs_input_grad[0] else None
