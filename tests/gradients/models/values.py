"""Functions that depend on the values of a record, differentiate by themselves, or ask for layouts.

Records differ in their values, so that they take several paths.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.table import row

X = (5, 4)


def by_values(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A linear layer, and a function of its outputs [1, 3] and of small whole numbers [1, 6]."""
    row(
        name,
        lambda: nn.Linear(4, 3),
        lambda: (torch.randn(X), torch.randint(3, (5, 6))),
        lambda model, x, numbers: function(model(x), numbers).square().sum(),
    )


by_values("branch_on_a_value", lambda out, k: out * 2 if (k[0, 0] > 0) else out.tanh())
by_values("branch_on_is_nonzero", lambda out, k: out * torch.is_nonzero(k[0, 0]))
by_values("branch_on_is_nonzero_of_a_tensor", lambda out, k: out * (1 + k[0, 1].is_nonzero()))
by_values("item_of_a_whole_number", lambda out, k: out * k.max().item())
by_values("int_of_a_tensor", lambda out, k: out[:, : 1 + int(k[0, 0])])
by_values("float_of_a_whole_number", lambda out, k: out * (1 + float(k[0, 0])))
by_values("range_of_a_tensor", lambda out, k: sum((out**i for i in range(k[0, 0])), out))
by_values("list_of_a_tensor", lambda out, k: out * sum(k[0, :2].tolist()))
by_values("picked_by_a_mask", lambda out, k: out[k[:, :3] > 0].exp())
by_values("picked_by_masked_select", lambda out, k: out.masked_select(k[:, :3] > 0))
by_values("picked_by_torch_masked_select", lambda out, k: torch.masked_select(out, k[:, :3] > 0))
by_values("places_by_where", lambda out, k: out[torch.where(k[:, :3] > 0)])
by_values("places_by_nonzero", lambda out, k: out[0, (k[0, :3] > 0).nonzero().squeeze(1)])
by_values("places_by_torch_nonzero", lambda out, k: out[torch.nonzero(k[:, :3], as_tuple=True)])
by_values("places_by_argwhere", lambda out, k: out[0, (k[0, :3] > 0).argwhere()])
by_values("places_by_torch_argwhere", lambda out, k: out[0, torch.argwhere(k[0, :3])])
by_values("unique_values", lambda out, k: out * len(k.unique()))
by_values("torch_unique_values", lambda out, k: out * torch.unique(k, return_counts=True)[1].max())
by_values("runs_of_values", lambda out, k: out * len(k[0].unique_consecutive()))
by_values("torch_runs_of_values", lambda out, k: out * len(torch.unique_consecutive(k[0])))
by_values("equal_tensors", lambda out, k: out * (1 + torch.equal(k[0, 0], k[0, 1])))
by_values("a_tensor_that_is_equal", lambda out, k: out * (1 + k[0, 0].equal(k[0, 1])))
by_values("close_tensors", lambda out, k: out * (2 + torch.allclose(k[0, :1], k[0, 1:2])))
by_values("a_tensor_that_is_close", lambda out, k: out * (2 + k[0, :1].allclose(k[0, 1:2])))


def written_by_masks(out: Tensor, k: Tensor) -> Tensor:
    out = out.clone()
    out[k[:, :3] == 1] = 0.5
    out[:, k[0, :3] == 2] = out.mean()
    other = torch.zeros_like(out)
    other[k[:, 3:] > 0] = out[k[:, 3:] > 0] * 2
    return out + other


by_values("written_by_masks", written_by_masks)


def slopes(model: nn.Module, x: Tensor) -> Tensor:
    x = x.data.clone()
    x.requires_grad = True
    assert x.requires_grad
    (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    return (first + second).square().sum()


def attacked(model: nn.Module, x: Tensor) -> Tensor:
    near = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(near).square().mean(), near)
    return model(x + 0.1 * slope.sign()).square().sum()


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


by_values("row_that_is_replaced", lambda out, k: torch.select_scatter(out * k[:, :3], out[0], 0, 0))
by_values("numbers_scattered", lambda out, k: out.clone().scatter_(1, k[:, :2], 1.0) * out)
by_values(
    "rows_scattered", lambda out, k: torch.zeros(1, 3).scatter_(1, k[:, :1], out[:, :1].exp())
)
by_values("clamped_in_place", lambda out, k: out * k.clone().clamp_(0, 1)[:, :3])
by_values("clamped_floats_in_place", lambda out, k: (2 * out).clamp_(-1, 1))
by_values("places_up_to_a_value", lambda out, k: out * torch.arange(1 + k[0, 0]).sum())
by_values("sizes_from_values", lambda out, k: out * len(out.new_zeros((1 + k[0, 0], k[0, 1]))))
by_values("zeros_of_a_value", lambda out, k: out * len(torch.zeros(1 + k[0, 0], 2)))
by_values("view_by_a_value", lambda out, k: out.view(1 + 0 * k[0, 0], 3).mean(1))
by_values("part_by_a_value", lambda out, k: out.narrow(1, 0, 1 + k[0, 0]))
by_values("torch_part_by_a_value", lambda out, k: torch.narrow(out, 1, k[0, 0], 1))
by_values("name_by_a_value", lambda out, k: out * len(f"{'row':{k[0, 0] + 3}}{k[0, 1]:03d}"))
by_values("filled_by_a_tensor", lambda out, k: torch.masked_fill(out, k[:, :3] > 1, out.mean()))
by_values("filled_by_a_number", lambda out, k: out.masked_fill(k[:, :3] > 1, 0.5))
by_values("filled_by_a_constant", lambda out, k: out.masked_fill(k[:, :3] > 1, torch.tensor(-1.0)))
by_values("column_that_is_replaced", lambda out, k: out.select_scatter(out[:, 0], 1, -1))


def along_ones(model: nn.Module, x: Tensor) -> Tensor:
    """A product with the matrix of second derivatives."""

    def energy(x: Tensor) -> Tensor:
        return model(x).square().sum()

    product = torch.autograd.functional.hvp(energy, x, torch.ones_like(x), create_graph=True)[1]
    return energy(x) + product.square().sum()


row("product_with_the_hessian", smooth, lambda: torch.randn(X), along_ones)
row("slopes_of_slopes", smooth, lambda: torch.randn(X), slopes)
row("a_step_against_the_loss", smooth, lambda: torch.randn(X), attacked)


def laid_out(model: nn.Module, x: Tensor) -> Tensor:
    last = torch.channels_last
    y = model(x.to(memory_format=last)).contiguous(memory_format=last)
    assert y.is_contiguous(memory_format=last)
    zeros = torch.zeros_like(y, memory_format=last)
    ones = torch.empty_like(y, memory_format=last).fill_(1)
    y = torch.clone(y, memory_format=last) * ones + y.clone(memory_format=last) + zeros
    return y.square().sum()


row("layouts", lambda: nn.Conv2d(2, 3, 3), lambda: torch.randn(5, 2, 4, 4), laid_out)


def in_memory(model: nn.Module, x: Tensor) -> Tensor:
    """A record's own filters lie among those of others."""
    filters = model(x).view(3, 1, 2, 2)
    y = F.conv2d(x.view(1, 1, 4, 4), filters)
    assert y.stride() == (27, 9, 3, 1)
    assert y[:, 1:].storage_offset() == y.stride(1) == 9
    assert not y[:, 1:].mT.is_contiguous()
    return y.square().sum()


row("strides", lambda: nn.Linear(16, 12), lambda: torch.randn(5, 16), in_memory)


class Padded(nn.Module):
    """A frozen encoder in evaluation mode, which torch runs without the padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1).requires_grad_(False).eval()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's own, of nested tensors
            x = self.encoder(x, src_key_padding_mask=mask)
        return self.head(x[:, 0])


row(
    "encoder_without_padding",
    Padded,
    lambda: (torch.randn(5, 3, 4), torch.arange(3) >= torch.tensor([1, 3, 2, 3, 2])[:, None]),
    lambda model, x, mask: model(x, mask).square().sum(),
)
row(
    "weights_of_classes_and_smoothing",
    lambda: nn.Linear(4, 3),
    lambda: (torch.randn(X), torch.tensor([0, 2, -100, 1, 2])),
    lambda model, x, y: sum(
        nn.functional.cross_entropy(
            torch.cat([model(x), 2 * model(x)]),
            torch.cat([y, y.clamp(min=1)]),
            torch.tensor([1, 2, 0.5], dtype=x.dtype),
            label_smoothing=0.1,
            reduction=reduction,
        )
        for reduction in ("mean", "sum")
    ),
)
