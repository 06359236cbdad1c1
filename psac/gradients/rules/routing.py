"""Mixtures of experts that give each expert the rows it was chosen for, by `grouped_mm`.

    y = F.grouped_mm(x, W, offs=ends)       rows of x up to ends[e] times W[e]

Each record has its own ends.  The rows of all records are sorted by expert, so that each expert
takes one product with all that it is given, and are put back in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from psac.gradients.contributions.routed import Routed
from psac.gradients.rules.physical import are_records, detached, physically, shaped

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder, Uses


def grouped_mm(
    rec: Recorder,
    input: Tensor,
    other: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    if offs is None or bias is not None or out_dtype is not None:
        return NotImplemented
    if are_records(input, other, offs) != [True, False, True] or not rec.serves(input, other):
        return NotImplemented
    if input.dim() != 2 or other.dim() != 3:
        return NotImplemented
    with physically():
        x_nmi, (weight,) = rec.physical(input), detached(other)
        n, m, _ = x_nmi.shape
        # whatever a record's ends are, they are in its own rows
        ends_ne = rec.physical(offs).long().clamp(0, m).cummax(1).values
        places = torch.arange(m, device=x_nmi.device)
        chosen_nm = (places.unsqueeze(1) >= ends_ne.unsqueeze(1)).sum(2)
        order = chosen_nm.flatten().argsort(stable=True)
        ends = ends_ne.diff(dim=1, prepend=ends_ne.new_zeros(n, 1)).sum(0).cumsum(0)
        rows = Reordered.apply(x_nmi.flatten(0, 1), order)
        y = torch.ops.aten._grouped_mm(rows, weight, offs=ends.int())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        y = shaped(Reordered.apply(y, back), (n, m, weight.shape[2]))  # type: ignore[arg-type]
        if int(ends[-1]) < n * m:  # torch leaves the rows of no expert as they were in memory
            y = y.masked_fill((chosen_nm == ends_ne.shape[1]).unsqueeze(-1), 0)

        def uses(grad: Tensor) -> Uses:
            yield other, Routed(x_nmi, grad.reshape(n, m, -1), ends_ne)

        return rec.of_records(rec.tap("grouped_mm", y, [other], uses, [x_nmi, ends_ne]))


class Reordered(torch.autograd.Function):
    """Rows in another order, and gradients put back without being added."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        found = torch.empty_like(grads[0])
        found[order] = grads[0]
        return found, None


def histc(rec: Recorder, input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many numbers fall in each of some intervals of given ends."""
    if are_records(input) != [True] or not rec.serves(input) or not min < max:
        return NotImplemented
    with physically():
        values = rec.physical(input).detach().reshape(rec.num_samples, -1)
        # in the order in which torch rounds
        places = ((values - min) * bins / (max - min)).long().clamp(max=bins - 1)
        counts = values.new_zeros(rec.num_samples, bins)
        inside = (values >= min) & (values <= max)
        counts.scatter_add_(1, places.clamp(min=0), inside.to(counts.dtype))
        return rec.of_records(counts)
