"""Loss functions of torch, as a user writes them for one record."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.table import row

CLASSES = 3


def by_class(name: str, loss, way: str = "vmap") -> None:
    """A linear model, and a loss of its outputs [1, classes], the class [1] and the record."""
    row(
        name,
        lambda: nn.Linear(4, CLASSES),
        lambda: (torch.randn(5, 4), torch.randint(CLASSES, (5,))),
        lambda m, x, y: loss(m(x), y, x[:, :CLASSES]),
        way,
    )


def one_hot(y: Tensor, x: Tensor) -> Tensor:
    return F.one_hot(y, CLASSES).to(x.dtype)


def signs(y: Tensor, x: Tensor) -> Tensor:
    return 2 * one_hot(y, x) - 1


def labels(y: Tensor) -> Tensor:
    """The class, one more than it, and an end; what is behind does not count."""
    return torch.stack([y, (y + 1) % CLASSES, -torch.ones_like(y)], 1)


by_class("cross_entropy", lambda out, y, x: F.cross_entropy(out, y))
by_class("cross_entropy_smoothed", lambda out, y, x: F.cross_entropy(out, y, label_smoothing=0.1))
by_class(
    "cross_entropy_weighted",
    lambda out, y, x: F.cross_entropy(out, y, weight=torch.tensor([1.0, 2, 3], dtype=x.dtype)),
)
by_class(
    "cross_entropy_of_probabilities",
    lambda out, y, x: F.cross_entropy(out, 0.9 * one_hot(y, x) + 0.03),
)
by_class(
    "cross_entropy_that_ignores_a_class",
    lambda out, y, x: F.cross_entropy(out, y, ignore_index=1, reduction="sum"),
)
by_class("nll", lambda out, y, x: F.nll_loss(out.log_softmax(-1), y))
by_class(
    "binary_cross_entropy",
    lambda out, y, x: (
        F.binary_cross_entropy_with_logits(
            out, one_hot(y, x), pos_weight=torch.tensor([1.0, 2, 3], dtype=x.dtype)
        )
        + F.binary_cross_entropy(out.sigmoid(), one_hot(y, x))
    ),
)
by_class(
    "regression",
    lambda out, y, x: F.mse_loss(out, x) + F.l1_loss(out, x) + F.smooth_l1_loss(out, x),
)
by_class("huber", lambda out, y, x: F.huber_loss(out, x, delta=0.5))
by_class("poisson", lambda out, y, x: F.poisson_nll_loss(out, x.abs()))
by_class("gaussian", lambda out, y, x: F.gaussian_nll_loss(out, x, out.exp()))
by_class(
    "gaussian_of_one_variance",
    lambda out, y, x: F.gaussian_nll_loss(out, x, out[:, 0].exp() / 3, full=True, eps=0.5),
)
by_class(
    "kl_div",
    lambda out, y, x: F.kl_div(out.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
)
by_class(
    "kl_div_of_logarithms",
    lambda out, y, x: F.kl_div(
        out.log_softmax(-1), x.log_softmax(-1), reduction="sum", log_target=True
    ),
)
by_class(
    "kl_div_module", lambda out, y, x: nn.KLDivLoss(reduction="none")(out, one_hot(y, x)).sum()
)
by_class("soft_margin", lambda out, y, x: F.soft_margin_loss(out, signs(y, x)))
by_class("hinge", lambda out, y, x: F.hinge_embedding_loss(out, signs(y, x)))
by_class("multi_margin", lambda out, y, x: F.multi_margin_loss(out, y))
by_class(
    "multi_margin_squared_and_weighted",
    lambda out, y, x: F.multi_margin_loss(
        out[0], y[0], p=2, margin=0.5, weight=torch.tensor([1.0, 2, 3], dtype=x.dtype)
    ),
)
by_class("multilabel_margin", lambda out, y, x: F.multilabel_margin_loss(out, labels(y)))
by_class(
    "multilabel_margin_of_one_label",
    lambda out, y, x: F.multilabel_margin_loss(out[0], labels(y)[0, [0, 2, 1]], reduction="sum"),
)
by_class(
    "multilabel_soft_margin",
    lambda out, y, x: F.multilabel_soft_margin_loss(out, one_hot(y, x)),
)
by_class("margin_ranking", lambda out, y, x: F.margin_ranking_loss(out, x, signs(y, x), margin=0.5))
by_class("cosine_embedding", lambda out, y, x: F.cosine_embedding_loss(out, x, torch.ones(1)))
by_class("triplet_margin", lambda out, y, x: F.triplet_margin_loss(out, x, x.flip(1)))
by_class(
    "triplet_margin_swapped",
    lambda out, y, x: F.triplet_margin_loss(out, x, out.flip(1), margin=2, p=1, swap=True),
)


def sequences() -> tuple[Tensor, ...]:
    lengths = torch.tensor([[8, 3], [7, 2], [8, 1], [6, 3], [8, 2]])
    return torch.randn(5, 8, 4), torch.randint(1, 5, (5, 3)), lengths[:, 0], lengths[:, 1]


def ctc(name: str, loss) -> None:
    row(
        name,
        lambda: nn.Linear(4, 5),
        sequences,
        lambda m, x, y, times, counts: loss(m(x).log_softmax(-1), y, times, counts),
    )


ctc("ctc", lambda out, y, t, c: F.ctc_loss(out.transpose(0, 1), y, t, c))
THREE = torch.tensor([3])
ctc("ctc_of_one_sequence", lambda out, y, t, c: F.ctc_loss(out[0], y[0], t[0], THREE[0]))
ctc("ctc_of_labels_alone", lambda out, y, t, c: F.ctc_loss(out.transpose(0, 1), y[0], t, THREE))
ctc(
    "ctc_of_known_lengths",
    lambda out, y, t, c: F.ctc_loss(out.transpose(0, 1), y, (8,), (3,), reduction="sum", blank=0),
)
ctc(
    "ctc_of_two_sequences",
    lambda out, y, t, c: F.ctc_loss(
        torch.cat([out, out.flip(1)]).log_softmax(-1).transpose(0, 1),
        torch.cat([y, y]),
        torch.cat([t, t]),
        torch.cat([c, c]),
        reduction="none",
        zero_infinity=True,
    ).sum(),
)
ctc(
    "ctc_module",
    lambda out, y, t, c: nn.CTCLoss(blank=4)(out.transpose(0, 1), y - 1, t, c),
)


def tagged() -> tuple[Tensor, Tensor]:
    """A label for each position; -100 does not count."""
    y = torch.randint(CLASSES, (5, 6))
    return torch.randn(5, 6, 4), y.masked_fill(torch.arange(6) > torch.arange(1, 6)[:, None], -100)


row(
    "cross_entropy_of_tokens",
    lambda: nn.Linear(4, CLASSES),
    tagged,
    lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()),
)
row(
    "as_many_classes_as_records",
    lambda: nn.Linear(4, 5),
    lambda: (torch.randn(5, 4), torch.arange(5)),
    lambda m, x, y: F.cross_entropy(m(x), y, weight=torch.arange(1, 6).to(x.dtype)),
)
row(
    "adaptive_softmax",
    lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 20, [5, 10], div_value=2),
    lambda: (torch.randn(5, 4), torch.randint(20, (5,))),
    lambda m, x, y: -m.log_prob(x).gather(1, y.unsqueeze(1)).mean(),
)
row(
    "adaptive_softmax_with_loss",
    lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 20, [5, 10], div_value=2),
    lambda: (torch.randn(5, 4), torch.randint(20, (5,))),
    lambda m, x, y: m(x, y).loss,
)
