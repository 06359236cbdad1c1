"""All steps of a recurrent layer in one autograd function, with its own backward through time.

Written out in torch operations, a step is a dozen nodes of the graph.  Here it is one matrix
product and a few pointwise operations, forward and backward; what does not depend on the step
before is computed for all steps at once.

Each function gets the gates that come from the inputs, [n, t, b, g], and an offset of zeros that is
added to those from the hidden state: its gradient is theirs.  It returns outputs [n, t, b, h] and,
for an LSTM, the last cell.  `kept` receives what the weights of the hidden state were multiplied
with, in the same order.

Letters: n record, t step, b sequence of a record, m row (of a record and a sequence), g gates,
h hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def by_step(values_ntbx: Tensor, bias: Tensor | None = None) -> Tensor:
    """[n, t, b, x] -> [t, m, x] in memory of its own, plus a bias."""
    given = values_ntbx.transpose(0, 1)
    values = given.new_empty(given.shape)
    values = values.copy_(given) if bias is None else torch.add(given, bias, out=values)
    return values.flatten(1, 2)


def by_record(values_tmx: Tensor, n: int, b: int) -> Tensor:
    """What `by_step` undoes."""
    values = values_tmx.view(len(values_tmx), n, b, values_tmx.shape[-1]).transpose(0, 1)
    return values.clone(memory_format=torch.contiguous_format)


def states(start_nbh: Tensor, steps: int) -> Tensor:
    """Room for all states [t + 1, m, h], of which the first is there."""
    start = start_nbh.flatten(0, 1)
    values = start.new_empty(steps + 1, *start.shape)
    values[0] = start
    return values


class Lstm(torch.autograd.Function):
    """Gates are i, f, g, o."""

    @staticmethod
    def forward(
        ctx: Any, gates_ntbg: Tensor, offset: Tensor, out_offset: Tensor | None, hidden: Tensor,
        cell: Tensor, weight: Tensor, bias: Tensor | None, projection: Tensor | None,
        kept: list[Tensor],
    ) -> Any:  # fmt: skip
        (n, steps, b, _), width = gates_ntbg.shape, cell.shape[-1]
        gates = by_step(gates_ntbg, bias)
        h, c = states(hidden, steps), states(cell, steps)
        squashed = torch.empty_like(c[1:])
        full = h[1:] if projection is None else torch.empty_like(squashed)
        turned = weight.t()
        for t in range(steps):
            torch.addmm(gates[t], h[t], turned, out=gates[t])
            i, f, g, o = gates[t].split(width, 1)
            gates[t, :, : 2 * width].sigmoid_()
            torch.mul(f, c[t], out=c[t + 1]).addcmul_(i, g.tanh_())
            torch.tanh(c[t + 1], out=squashed[t])
            torch.mul(o.sigmoid_(), squashed[t], out=full[t])
            if projection is not None:
                torch.mm(full[t], projection.t(), out=h[t + 1])
        kept.append(by_record(h[:-1], n, b))
        if projection is not None:
            kept.append(by_record(full, n, b))
        ctx.save_for_backward(gates, c, squashed, weight, projection)
        ctx.sizes = n, b
        return by_record(h[1:], n, b), c[-1].clone().view(n, b, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (n, b), (gates, c, squashed, weight, projection) = ctx.sizes, ctx.saved_tensors
        width = c.shape[-1]
        i, f, g, o = gates.split(width, -1)
        # what each gate gets: of the cell's gradient, or (the last) of the output's
        shares = torch.cat(
            [
                torch.ops.aten.sigmoid_backward(g, i),
                torch.ops.aten.sigmoid_backward(c[:-1], f),
                torch.ops.aten.tanh_backward(i, g),
                torch.ops.aten.sigmoid_backward(squashed, o),
            ],
            -1,
        ).unflatten(-1, (4, width))
        of_output = torch.ops.aten.tanh_backward(o, squashed)
        arriving, found = by_step(grads[0]), torch.empty_like(shares)
        d_c, d_h = grads[1].flatten(0, 1), torch.zeros_like(arriving[0])
        for t in reversed(range(len(gates))):
            d_h = arriving[t].add_(d_h)
            d_full = d_h if projection is None else d_h @ projection
            d_c = torch.addcmul(d_c, d_full, of_output[t])
            torch.mul(shares[t, :, :3], d_c.unsqueeze(1), out=found[t, :, :3])
            torch.mul(shares[t, :, 3], d_full, out=found[t, :, 3])
            d_c, d_h = d_c * f[t], found[t].flatten(1) @ weight
        d_gates = by_record(found.flatten(2), n, b)
        of_projection = None if projection is None else by_record(arriving, n, b)
        d_first = (value.view(n, b, value.shape[-1]) for value in (d_h, d_c))
        return d_gates, d_gates, of_projection, *d_first, None, None, None, None


class Gru(torch.autograd.Function):
    """Gates are r, z, n."""

    @staticmethod
    def forward(
        ctx: Any, gates_ntbg: Tensor, offset: Tensor, hidden: Tensor, weight: Tensor,
        bias: Tensor | None, kept: list[Tensor],
    ) -> Any:  # fmt: skip
        (n, steps, b, _), width = gates_ntbg.shape, hidden.shape[-1]
        gates, h = by_step(gates_ntbg), states(hidden, steps)
        recalled = torch.empty_like(gates)
        turned = weight.t()
        for t in range(steps):
            if bias is None:
                torch.mm(h[t], turned, out=recalled[t])
            else:
                torch.addmm(bias, h[t], turned, out=recalled[t])
            r, z, new = gates[t].split(width, 1)
            gates[t, :, : 2 * width].add_(recalled[t, :, : 2 * width]).sigmoid_()
            new.addcmul_(r, recalled[t, :, 2 * width :]).tanh_()
            torch.lerp(new, h[t], z, out=h[t + 1])
        kept.append(by_record(h[:-1], n, b))
        ctx.save_for_backward(gates, h, recalled[..., 2 * width :], weight)
        ctx.sizes = n, b
        return by_record(h[1:], n, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (n, b), (gates, h, recalled, weight) = ctx.sizes, ctx.saved_tensors
        width = h.shape[-1]
        r, z, new = gates.split(width, -1)
        of_new = torch.ops.aten.tanh_backward(1 - z, new)
        of_r = torch.ops.aten.sigmoid_backward(of_new * recalled, r)
        of_z = torch.ops.aten.sigmoid_backward(h[:-1] - new, z)
        shares = torch.stack([of_r, of_z, of_new * r], 2)
        arriving, found = by_step(grads[0]), torch.empty_like(shares)
        d_h = torch.zeros_like(arriving[0])
        for t in reversed(range(len(gates))):
            d_h = arriving[t].add_(d_h)
            torch.mul(shares[t], d_h.unsqueeze(1), out=found[t])
            d_h = torch.addmm(d_h * z[t], found[t].flatten(1), weight)
        d_inputs = torch.cat([found[:, :, :2].flatten(2), of_new * arriving], -1)
        d_first = d_h.view(n, b, width)
        both = (by_record(value, n, b) for value in (d_inputs, found.flatten(2)))
        return *both, d_first, None, None, None


class Plain(torch.autograd.Function):
    """h = tanh(gates), or relu."""

    @staticmethod
    def forward(
        ctx: Any, gates_ntbg: Tensor, offset: Tensor, hidden: Tensor, weight: Tensor,
        bias: Tensor | None, is_relu: bool, kept: list[Tensor],
    ) -> Any:  # fmt: skip
        n, steps, b, _ = gates_ntbg.shape
        gates, h = by_step(gates_ntbg, bias), states(hidden, steps)
        turned = weight.t()
        for t in range(steps):
            total = torch.addmm(gates[t], h[t], turned, out=h[t + 1])
            total.relu_() if is_relu else total.tanh_()
        kept.append(by_record(h[:-1], n, b))
        ctx.save_for_backward(h, weight)
        ctx.sizes, ctx.is_relu = (n, b), is_relu
        return by_record(h[1:], n, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (n, b), (h, weight) = ctx.sizes, ctx.saved_tensors
        outputs = h[1:]
        shares = (outputs <= 0).logical_not().to(h.dtype) if ctx.is_relu else 1 - outputs.square()
        found = by_step(grads[0])
        d_h = torch.zeros_like(found[0])
        for t in reversed(range(len(outputs))):
            d_h = found[t].add_(d_h).mul_(shares[t]) @ weight
        d_gates = by_record(found, n, b)
        return d_gates, d_gates, d_h.view(n, b, -1), None, None, None, None
