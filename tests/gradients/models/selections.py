"""Rows that a mask of the record's own selects, and what is done with them.

SELECTED are computed for all records at once; PARTED ask for the number of rows, or use them in a
way that psac does not know, so that records take paths of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.table import row

SELECTED: list[str] = []
PARTED: list[str] = []


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2)
        self.words = nn.Embedding(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Numbers, classes, and masks of 1 to 6 rows."""
    masks = torch.rand(5, 6).argsort(1) < torch.tensor([1, 6, 2, 4, 3]).unsqueeze(1)
    return torch.randn(5, 6, 4), torch.randint(3, (5, 6)), masks


def selection(
    names: list[str],
    name: str,
    function: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor],
) -> None:
    """A loss of the model, outputs [1, 6, 3], classes and masks [1, 6]."""
    names.append(f"selected_{name}")
    row(names[-1], Network, batch, lambda model, x, y, m: function(model, model(x), y, m))


def ordinary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    """Of the selected rows [rows, 3] alone."""
    selection(SELECTED, name, lambda _, out, y, m: function(out[m]))


ordinary("mean", lambda rows: rows.square().mean())
ordinary("sum", lambda rows: torch.sum(rows.exp()))
ordinary("mean_of_features", lambda rows: rows.mean(-1).square().sum() + rows.sum(1).tanh().mean())
ordinary("mean_of_rows", lambda rows: rows.mean(0).square().sum() + rows.sum((0, 1), True)[0, 0])
ordinary("arithmetic", lambda rows: ((2 - rows) * rows / (rows.abs() + 1) - 0.5).pow(2).sum())
ordinary("softmax", lambda rows: (rows.softmax(-1) * F.log_softmax(rows, 1)).sum())
ordinary("in_shape", lambda rows: rows.view(-1, 3).reshape(-1, 3, 1).squeeze(2).exp().sum())
ordinary("size", lambda rows: rows.square().sum() / rows.size(-1) / rows.dim())
ordinary("where", lambda rows: torch.where(rows > 0, rows, 0.1 * rows).clamp(-1, 1).sum())
ordinary("detached", lambda rows: (rows * rows.detach().float().sign()).mean())
selection(
    SELECTED, "layers", lambda model, out, y, m: model.head(model.norm(out[m]).relu()).exp().mean()
)
selection(SELECTED, "words", lambda model, out, y, m: model.words(y[m]).tanh().sum() + out.sum())
selection(SELECTED, "entries", lambda _, out, y, m: out[:, :, 0].masked_select(m).exp().mean())
selection(SELECTED, "twice", lambda _, out, y, m: (out[m] * (y[m].unsqueeze(-1) == 1)).mean())
selection(SELECTED, "equal_masks", lambda _, out, y, m: (out[m] * out[~~m].detach()).sum())
selection(SELECTED, "cross_entropy", lambda _, out, y, m: F.cross_entropy(out[m], y[m]))
selection(SELECTED, "nll_loss", lambda _, out, y, m: F.nll_loss(out[m], y[m], reduction="sum"))
selection(
    SELECTED,
    "weighted_cross_entropy",
    lambda _, out, y, m: nn.CrossEntropyLoss(
        torch.tensor([0.5, 1.0, 2.0], dtype=out.dtype), label_smoothing=0.1
    )(out[m], y[m]),
)
selection(
    SELECTED,
    "terms_of_cross_entropy",
    lambda _, out, y, m: F.cross_entropy(out[m], y[m], reduction="none").square().mean(),
)
selection(
    SELECTED,
    "binary_cross_entropy",
    lambda _, out, y, m: nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0, dtype=out.dtype))(
        out[..., 0][m], (y[m] > 0).to(out.dtype)
    ),
)
selection(SELECTED, "mse_loss", lambda _, out, y, m: nn.MSELoss()(out[m], 0 * out[m] + 1))
selection(
    SELECTED, "huber_loss", lambda _, out, y, m: F.huber_loss(out[m], 2 * out[m], reduction="sum")
)
ordinary("keyword", lambda rows: torch.mean(input=rows.square()))
ordinary("type_of_rows", lambda rows: (torch.tensor([0.5, 1, 2]).to(rows) * rows.exp()).mean())
ordinary("one_number_like_rows", lambda rows: (torch.tensor(2).type_as(rows) * rows).exp().sum())
selection(
    SELECTED,
    "weights_like_rows",
    lambda model, out, y, m: (
        out[m].exp().mean() + model.norm.weight.view(1, 3).type_as(out[m]).square().sum()
    ),
)


def with_written_mask(model: nn.Module, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """What was selected stays as it was when the mask changes."""
    mask = mask.clone()
    rows = out.detach()[mask]
    mask.logical_not_()
    return model.head(rows).exp().sum()


selection(SELECTED, "then_mask_is_written", with_written_mask)
selection(
    PARTED,
    "in_a_gradient",
    lambda model, out, y, m: (
        torch.func.grad(lambda rows: (rows * model.norm.weight).sum())(out[m]).exp().sum()
    ),
)
selection(
    PARTED,
    "weighted_terms",
    lambda _, out, y, m: F.mse_loss(
        out[m].sum(1), 0 * out[m].sum(1), weight=out[m].sum(1).detach().exp()
    ),
)
selection(
    PARTED,
    "words_by_frequency",
    lambda model, out, y, m: (
        F.embedding(y[m], model.words.weight, scale_grad_by_freq=True).exp().sum() + out.sum()
    ),
)
selection(PARTED, "number", lambda _, out, y, m: out[m].square().sum() / len(out[m]) ** 2)
selection(PARTED, "shape", lambda _, out, y, m: out[m].square().sum() / out[m].shape[0])
selection(PARTED, "mixed", lambda _, out, y, m: out[m].cumsum(0).square().sum())
selection(PARTED, "flipped", lambda _, out, y, m: (out[m] * out[m].flip(0).detach()).sum())
selection(PARTED, "listed", lambda _, out, y, m: torch.cat([out[m], out[0]]).std())
selection(PARTED, "by_other_masks", lambda _, out, y, m: (out[m] * out.flip(1)[m.flip(1)]).sum())
selection(PARTED, "in_place", lambda _, out, y, m: out[m].mul_(2).tanh().sum())
selection(PARTED, "of_rows", lambda _, out, y, m: F.softmax(out[m], 0).square().sum())
selection(PARTED, "broadcast", lambda _, out, y, m: (out[m] * out[m][:1].detach()).sum())
