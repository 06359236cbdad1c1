"""torch's own batching rules: a record has what it has alone, wherever it stands in the batch.

Under vmap an operation runs by a rule of torch's, and some have been wrong: the one of embeddings
heeds the padding of the first record alone, the one of `select_scatter` gives too large a gradient.
A form here is a function of a record [4, 6] and of its indices [10].  The first and the last record
are far from the others, and all have the index 0, for padding and for what is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from psac.gradients import Evaluator
from psac.gradients.check import loops_of
from psac.gradients.errors import NotVectorized
from psac.gradients.groups import TOGETHER
from psac.gradients.isolation.outside import Outside
from psac.gradients.vectorized.evaluate import Vectorized

RECORDS, ROWS, COLUMNS, INDICES, OUTLIER = 5, 4, 6, 10, 30.0
TWO, ORDER = torch.tensor([1, 0]), torch.arange(2)
MASK = torch.tensor([True, False, True, True])
Form = Callable[[Tensor, Tensor], Tensor]

PADDED: dict[str, Form] = {
    "embedding": lambda x, i: F.embedding(i % 4, x),
    "embedding, padding": lambda x, i: F.embedding(i % 4, x, padding_idx=0),
    "embedding, padding last": lambda x, i: F.embedding(i % 4, x, padding_idx=-1),
    "embedding of a list, padding": lambda x, i: F.embedding(ORDER, x, padding_idx=0),
    "embedding by frequency": lambda x, i: F.embedding(i % 4, x, None, scale_grad_by_freq=True),
    "embedding by frequency, padding": lambda x, i: F.embedding(
        i % 4, x, padding_idx=0, scale_grad_by_freq=True
    ),
    "torch.embedding, padding": lambda x, i: torch.embedding(x, i % 4, 0),
    "aten.embedding, padding": lambda x, i: torch.ops.aten.embedding(x, i % 4, 0),
    "embedding in torch.func.grad, padding": lambda x, i: torch.func.grad(
        lambda t: F.embedding(i % 4, t, padding_idx=0).pow(3).sum()
    )(x),
    "embedding in torch.func.vmap, padding": lambda x, i: torch.func.vmap(
        lambda t: F.embedding(i % 4, t, padding_idx=0), -1
    )(x.view(4, 1, 6)),
    "nll_loss, ignored": lambda x, i: F.nll_loss(x.log_softmax(1), i[:4] % 6, ignore_index=0),
    "nll_loss, ignored, sum": lambda x, i: F.nll_loss(x, i[:4] % 6, None, None, 0, None, "sum"),
    "nll_loss, weights": lambda x, i: F.nll_loss(x, i[:4] % 6, torch.arange(6.0).to(x)),
    "nll_loss of two axes, ignored": lambda x, i: F.nll_loss(
        x.view(1, 4, 2, 3).log_softmax(1), i[:6].view(1, 2, 3) % 4, ignore_index=0
    ),
    "cross_entropy, ignored": lambda x, i: F.cross_entropy(x, i[:4] % 6, ignore_index=0),
    "cross_entropy, all": lambda x, i: F.cross_entropy(
        x, i[:4] % 6, torch.arange(6.0).to(x), ignore_index=0, label_smoothing=0.1
    ),
    "cross_entropy of odds": lambda x, i: F.cross_entropy(x, x.detach().softmax(1)),
    "aten.nll_loss": lambda x, i: torch.ops.aten.nll_loss_forward(x, i[:4] % 6, None, 1, 0)[0],
    "ctc_loss": lambda x, i: F.ctc_loss(
        x.log_softmax(1).unsqueeze(1), 1 + i[None, :2] % 5, torch.tensor([4]), torch.tensor([2])
    ),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x, i[:4] % 6),
    "multilabel_margin_loss": lambda x, i: F.multilabel_margin_loss(x[0], (i[:6] % 7) - 1),
    "one_hot": lambda x, i: F.one_hot(i[:4] % 6, 6) * x,
}  # fmt: skip
for _mode in ("sum", "mean", "max"):
    PADDED[f"embedding_bag, {_mode}, padding"] = lambda x, i, m=_mode: F.embedding_bag(
        (i % 4).view(2, -1), x, mode=m, padding_idx=0
    )
    PADDED[f"embedding_bag, {_mode}, offsets"] = lambda x, i, m=_mode: F.embedding_bag(
        i % 4, x, torch.tensor([0, 3]), mode=m, padding_idx=0
    )

INDEXED: dict[str, Form] = {
    "take": lambda x, i: x.take(i),
    "put": lambda x, i: x.put(i[:3], x[0, :3]),
    "put, accumulate": lambda x, i: x.put(i[:3], x[0, :3], accumulate=True),
    "index_put": lambda x, i: x.index_put((ORDER, i[1:3] % 6), x[:2, 0]),
    "index_put, accumulate": lambda x, i: x.index_put((i[:4] % 4, i[:4] % 6), x[:, 0], True),
    "index_put of rows": lambda x, i: x.index_put((i[:4] % 4,), x, accumulate=True),
    "index_fill": lambda x, i: x.index_fill(0, i[:1] % 4, 3.0),
    "index_add": lambda x, i: x.index_add(0, i[:4] % 4, x, alpha=2),
    "index_select": lambda x, i: x.index_select(1, i % 6),
    "index_select by one number": lambda x, i: x.index_select(1, i[0] % 6),
    "index_select by one constant": lambda x, i: x.index_select(0, ORDER[1]),
    "x[:, i] = y": lambda x, i: written(x, (slice(None), i[:1] % 6), 2 * x[:, :1]),
    "x[:, i] = y, as many as rows": lambda x, i: written(
        x, (slice(None), (i[:1] + torch.arange(4)) % 6), 2 * x[:, :4]
    ),
    "x[..., i] = 1": lambda x, i: written(x, (..., i % 6), 1.0) * x,
    "x[1:, i] += y": lambda x, i: written(x, (slice(1, None), i[0] % 6), x[1:, 0] + x[1:, 1]),
    "zeros[:, i] = y": lambda x, i: written(
        torch.zeros(4, 6).to(x), (slice(None), i[:1] % 6), 2 * x[None, :, :1]
    ),
    "gather": lambda x, i: x.gather(1, i.expand(4, -1) % 6),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i),
    "scatter": lambda x, i: x.scatter(1, i[:1].expand(4, 1) % 6, 2.0),
    "scatter_add": lambda x, i: x.scatter_add(1, i[:6].expand(4, 6) % 6, x),
    "scatter_reduce, prod": lambda x, i: x.scatter_reduce(1, i[:6].expand(4, 6) % 6, x, "prod"),
    "scatter_reduce, mean": lambda x, i: x.scatter_reduce(1, i[:6].expand(4, 6) % 6, x, "mean"),
    "scatter_reduce, amin": lambda x, i: x.scatter_reduce(
        1, i[:6].expand(4, 6) % 6, 2 * x, "amin", include_self=False
    ),
    "index_reduce": lambda x, i: torch.zeros_like(x).index_reduce(0, i[:4] % 4, x, "amax"),
    "x[i, j]": lambda x, i: x[i[:3] % 4, i[3:6] % 6],
    "x[:, i]": lambda x, i: x[:, i % 6],
    "x[i, None]": lambda x, i: x[i[:2] % 4, None] * x[None, :2],
    "x[mask]": lambda x, i: x[MASK],
    "x[mask] = y": lambda x, i: written(x, MASK, 2 * x[:3]),
    "x[i] = y": lambda x, i: written(x, i[:1] % 4, 2 * x[:1]),
    "masked_scatter": lambda x, i: x.masked_scatter(x > 0, 2 * x),
    "masked_fill": lambda x, i: x.masked_fill(x > 0, x.mean()),
    "argmax": lambda x, i: x.flatten()[x.argmax()] * x,
    "searchsorted": lambda x, i: x * torch.searchsorted(x.sort(1).values, x),
    "bincount": lambda x, i: torch.bincount(i, x.detach()[0, 0].expand(10), 24) * x.sum(),
    "histc": lambda x, i: x.sum() * torch.histc(x.detach(), 4, -2, 2),
}

# By a dimension
DIMENSIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "select_scatter": lambda x, d: x.select_scatter(2 * x.select(d, 0), d, 2),
    "select_scatter of the last": lambda x, d: torch.select_scatter(x, x.select(d, 0), d, -1),
    "slice_scatter": lambda x, d: x.slice_scatter(2 * x.narrow(d, 0, 2), d, 1, 3),
    "slice_scatter by two": lambda x, d: x.slice_scatter(2 * x.narrow(d, 0, 2), d, 0, 4, 2),
    "diagonal_scatter": lambda x, d: x.diagonal_scatter(2 * x.diagonal(d), d),
    "index_add": lambda x, d: x.index_add(d, TWO, x.narrow(d, 0, 2)),
    "index_copy": lambda x, d: x.index_copy(d, TWO, 2 * x.narrow(d, 1, 2)),
    "index_fill": lambda x, d: x.index_fill(d, TWO, 2.0),
    "index_reduce": lambda x, d: x.index_reduce(d, TWO, x.narrow(d, 1, 2), "amax"),
    "scatter": lambda x, d: x.scatter(d, torch.zeros(2, 2, dtype=torch.long), 3.0),
    "scatter_": lambda x, d: x.clone().scatter_(d, torch.ones(2, 2, dtype=torch.long), x[:2, :2]),
    "gather": lambda x, d: x.gather(d, torch.ones(4, 6, dtype=torch.long)),
    "take_along_dim": lambda x, d: torch.take_along_dim(x, x.argsort(d), d),
    "unfold": lambda x, d: x.unfold(d, 2, 1),
    "roll": lambda x, d: x.roll(1, d),
    "flip": lambda x, d: x.flip(d),
    "diff": lambda x, d: x.diff(dim=d, prepend=x.narrow(d, 0, 1)),
    "sort": lambda x, d: x.sort(d, descending=True).values,
    "topk": lambda x, d: x.topk(2, d).values,
    "kthvalue": lambda x, d: x.kthvalue(2, d).values,
    "median": lambda x, d: x.median(d).values,
    "mode": lambda x, d: x.round().mode(d).values * x.sum(),
    "cummax": lambda x, d: x.cummax(d).values,
    "cumprod": lambda x, d: x.cumprod(d),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d),
    "logsumexp": lambda x, d: x.logsumexp(d, keepdim=True),
    "prod": lambda x, d: x.prod(d),
    "amax": lambda x, d: x.amax(d),
    "std": lambda x, d: x.std(d),
    "norm": lambda x, d: x.norm(3, d),
    "renorm": lambda x, d: x.renorm(2, d, 1.0),
    "quantile": lambda x, d: x.quantile(0.4, d),
    "softmax": lambda x, d: x.softmax(d),
    "log_softmax": lambda x, d: x.log_softmax(d),
    "glu": lambda x, d: F.glu(x, d),
    "normalize": lambda x, d: F.normalize(x, dim=d),
    "cosine_similarity": lambda x, d: F.cosine_similarity(x, x + 1, dim=d),
    "vecdot": lambda x, d: torch.linalg.vecdot(x, x + 1, dim=d),
    "cross": lambda x, d: torch.linalg.cross(x[:3, :3], x[1:, 3:], dim=d),
    "cat": lambda x, d: torch.cat([x, 2 * x.narrow(d, 0, 1)], d),
    "stack": lambda x, d: torch.stack([x, 2 * x], d),
    "unbind": lambda x, d: x.unbind(d)[1],
    "tensor_split": lambda x, d: x.tensor_split([1], d)[1],
    "movedim": lambda x, d: x.movedim(d, 0),
    "unflatten": lambda x, d: x.unflatten(d, (2, -1)),
    "squeeze": lambda x, d: x.narrow(d, 0, 1).squeeze(d),
    "repeat_interleave": lambda x, d: x.repeat_interleave(torch.arange(x.shape[d]), d),
    "rfft": lambda x, d: torch.fft.rfft(x, dim=d).abs(),
    "trapezoid": lambda x, d: torch.trapezoid(x, dim=d),
    "weight_norm": lambda x, d: torch._weight_norm(x, x.norm(2, 1 - d % 2, True), d % 2),
    "written": lambda x, d: written(x.transpose(d, 0), 1, 2 * x.select(d, 0)),
    "select and write": lambda x, d: in_place(x, lambda y: y.select(d, 1).mul_(3)),
    "cumsum_": lambda x, d: in_place(x, lambda y: y.cumsum_(d)),
}
LAYERS: dict[str, Form] = {
    "prelu": lambda x, i: F.prelu(x, x[0].abs()),
    "layer_norm": lambda x, i: F.layer_norm(x, (6,), x[0], x[1]),
    "group_norm": lambda x, i: F.group_norm(x[None], 2, x[:, 0], x[:, 1]),
    "batch_norm": lambda x, i: F.batch_norm(x[None], x[:, 0].detach() * 0, x[:, 1].detach() ** 2),
    "conv1d, groups": lambda x, i: F.conv1d(x[None], x[:, :4].reshape(4, 2, 2), groups=2),
    "conv_transpose1d": lambda x, i: F.conv_transpose1d(
        x[None], x[:, :4].reshape(4, 2, 2), stride=2, groups=2, output_padding=1
    ),
    "attention": lambda x, i: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None], is_causal=True
    ),
    "bilinear": lambda x, i: F.bilinear(x, x, x.unsqueeze(1).expand(4, 6, 6)),
    "addmm": lambda x, i: torch.addmm(x[:, :4], x, x.t(), beta=0.5, alpha=2),
    "baddbmm": lambda x, i: torch.baddbmm(x[None, :, :4], x[None], x.t()[None]),
    "cdist": lambda x, i: torch.cdist(x, 2 * x + 1, p=1.5),
    "grid_sample": lambda x, i: F.grid_sample(x.view(1, 1, 4, 6), x.view(1, 4, 3, 2).tanh()),
    "interpolate": lambda x, i: F.interpolate(x.view(1, 2, 4, 3), (5, 7), mode="bilinear"),
    "fold": lambda x, i: F.fold(x[None], (3, 4), 2),
    "pad": lambda x, i: F.pad(x.view(1, 2, 4, 3), (1, 2, 1, 0), mode="reflect"),
    "max_unpool2d": lambda x, i: F.max_unpool2d(
        *F.max_pool2d(x.view(1, 1, 4, 6), 2, return_indices=True), 2
    ),
    "avg_pool2d": lambda x, i: F.avg_pool2d(
        x.view(1, 1, 4, 6), 2, padding=1, count_include_pad=False, divisor_override=3
    ),
}


def written(x: Tensor, index: Any, value: Any) -> Tensor:
    y = x.clone()
    y[index] = value
    return y


def in_place(x: Tensor, write: Callable[[Tensor], object]) -> Tensor:
    y = x.clone()
    write(y)
    return y


FORMS = {
    **PADDED,
    **{f"{name}, by indices": form for name, form in INDEXED.items()},
    **LAYERS,
    **{
        f"{name}, dimension {d}": lambda x, i, f=f, d=d: f(x, d)
        for name, f in DIMENSIONS.items()
        for d in (0, 1, -1, -2)
    },
}


def value(form: Form, x: Tensor, indices: Tensor) -> Tensor:
    out = form(x, indices)
    return (out * torch.linspace(0.5, 1.5, out.numel()).to(out).view(out.shape)).sum()


def with_penalty(form: Form, x: Tensor, indices: Tensor) -> Tensor:
    """Its gradient, differentiated once more."""
    found = value(form, x, indices)
    (slope,) = torch.autograd.grad(found, x, create_graph=True, materialize_grads=True)
    return found + 0.1 * slope.square().sum()


class Scaled(nn.Module):
    """The form sees what is computed from the record and from a parameter."""

    def __init__(self, form: Form, way: Callable[[Form, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.form, self.way = form, way
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 24).double().view(4, 6))

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        return self.way(self.form, self.scale * x[0], indices[0])


def loss(model: nn.Module, x: Tensor, indices: Tensor) -> Tensor:
    return model(x, indices)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, ROWS, COLUMNS, generator=generator).double()
    x[0], x[-1] = OUTLIER * x[0], -OUTLIER * x[-1]
    indices = torch.randint(24, (RECORDS, INDICES), generator=generator)
    indices[:, 2] = 0
    return x, indices


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [value, with_penalty])
@pytest.mark.parametrize("name", list(FORMS))
def test_a_record_has_what_it_has_alone_wherever_it_stands(name, way):
    model, (x, indices) = Scaled(FORMS[name], way), batch()
    try:
        alone = [one(model, x[k : k + 1], indices[k : k + 1]) for k in range(RECORDS)]
    except (RuntimeError, NotImplementedError):
        assert way is with_penalty, "the form itself is wrong"
        pytest.skip("torch cannot differentiate it twice")
    together = Vectorized(model, dict(model.named_parameters()), Outside(model))
    try:
        found = together.evaluate(loss, (x, indices))
    except (RuntimeError, NotVectorized) as error:
        pytest.skip(f"computed one record at a time: {error}")
    losses, gradients = (torch.stack(parts) for parts in zip(*alone, strict=True))
    torch.testing.assert_close(found.losses, losses, rtol=1e-6, atol=1e-9)
    norms = gradients.flatten(1).norm(dim=1)
    (squares,) = found.measured.norms_squared(TOGETHER)
    assert squares is not None
    torch.testing.assert_close(squares.double().sqrt(), norms, rtol=1e-6, atol=1e-9)
    weights = torch.arange(1, RECORDS + 1) / norms.clamp(min=1e-9)
    sums = found.measured.weighted_sums([weights], TOGETHER)["scale"]
    expected = (weights.view(-1, 1, 1) * gradients).sum(0)
    torch.testing.assert_close(sums.double(), expected, rtol=1e-6, atol=1e-6)


def one(model: Scaled, x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    result = loss(model, x, indices)
    (gradient,) = torch.autograd.grad(result, model.scale, materialize_grads=True)
    return result.detach(), gradient


def test_what_experts_and_masks_write_is_no_loop_over_records() -> None:
    """torch has no batching rule for `scatter_` with a number, nor for a tensor as the filling."""
    model = nn.Linear(4, 3)

    def loss(model: nn.Module, x: Tensor, k: Tensor) -> Tensor:
        chosen = torch.zeros(1, 3).scatter_(1, k, 1).scatter_(1, k, 2 * model(x)[:, :1])
        filled = torch.masked_fill(model(x), chosen > 0, torch.tensor(float("-inf")))
        return filled.softmax(-1).square().sum() + chosen.sum() * k.clone().clamp_(0, 1).sum()

    batch = torch.randn(6, 4), torch.randint(3, (6, 1))
    loops, evaluation = loops_of(Evaluator(model), loss, batch)
    assert evaluation.way == "vmap"
    assert loops == []
