"""Operations of torch with parameters in every place, and a record that is not finite or huge.

A row is a name, the shapes of its parameters, and a function of a record [1, 4, 6] and of them.  A
record is spoilt by NaN, inf, 1e20 or 1e38.  Whatever it becomes, the other records must add to the
sums what they add without it:

    sums(batch with the record) = sums(batch without it) + sums(the record alone)

and the last term is one bound at most.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import psac
from psac.gradients import ClippedSum, Evaluator

ROWS, COLUMNS, ORDINARY = 4, 6, 5
BOUND = 0.5
SPOILT = {
    "NaN in one entry": lambda x: x.flatten().index_fill(0, torch.tensor([5]), math.nan),
    "inf everywhere": lambda x: torch.full_like(x, math.inf),
    "1e20 everywhere": lambda x: torch.full_like(x, 1e20),
    "1e38 in one entry": lambda x: x.flatten().index_fill(0, torch.tensor([5]), 1e38),
}


@dataclass(frozen=True)
class Operation:
    name: str
    shapes: tuple[tuple[int, ...], ...]
    function: Callable[..., Tensor]
    make: Callable[[], nn.Module] | None = None  # a layer, in the place of parameters


TABLE: list[Operation] = []
VECTOR, MATRIX, SQUARE = (COLUMNS,), (ROWS, COLUMNS), (COLUMNS, COLUMNS)


def put(name: str, function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
    TABLE.append(Operation(name, shapes or (VECTOR,), function))


def layer(name: str, make: Callable[[], nn.Module], function: Callable | None = None) -> None:
    TABLE.append(Operation(name, (), function or (lambda x, m: m(x)), make))


class Operating(nn.Module):
    def __init__(self, operation: Operation) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = operation.function
        self.weights = nn.ParameterList([torch.rand(*s) * 0.8 + 0.3 for s in operation.shapes])
        self.layer = operation.make() if operation.make else None

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.weights, *([self.layer] if self.layer is not None else []))


def loss(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    out = torch.view_as_real(out) if out.is_complex() else out
    return out.float().sum()


@dataclass
class Result:
    ratio: float  # what the record moves, in bounds
    rest: float  # what the others add otherwise than without it
    ways: list[str]
    stopped: str = ""


def measure(operation: Operation) -> dict[str, Result]:
    """By what the record is spoilt with."""
    generator = torch.Generator().manual_seed(1)
    ordinary = torch.rand(ORDINARY, ROWS, COLUMNS, generator=generator) * 0.8 + 0.1
    record = torch.rand(1, ROWS, COLUMNS, generator=generator) * 0.8 + 0.1
    total = ClippedSum(Evaluator(Operating(operation)), psac.Abadi(bound=BOUND))
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        without, way = sums(total, ordinary)
        for name, spoil in SPOILT.items():
            spoilt = spoil(record).view_as(record)
            both = torch.cat([ordinary[:2], spoilt, ordinary[2:]])
            error = error_of(lambda s=spoilt: loss(total.evaluator.model, s))
            if error is not None:  # plain torch raises for that record, and so must psac
                assert error_of(lambda b=both: total.add(loss, b)) == error
                found[name] = Result(0.0, 0.0, [], error)
                continue
            alone, _ = sums(total, spoilt)
            both, way = sums(total, both)
            parts = [(a - b, a - b - c) for a, b, c in zip(both, without, alone, strict=True)]
            moved, rest = (
                math.sqrt(sum(float(t.double().square().sum()) for t in column)) / BOUND
                for column in zip(*parts, strict=True)
            )
            found[name] = Result(moved, rest, [way])
    return found


def error_of(function: Callable[[], object]) -> str | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever torch has for it
        return type(error).__name__
    return None


def sums(total: ClippedSum, x: Tensor) -> tuple[list[Tensor], str]:
    way = total.add(loss, x).way
    collected = total.collect().values()
    return [torch.view_as_real(t) if t.is_complex() else t for t in collected], way


# Elementwise, with the parameter on either side
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "pow": lambda a, b: a.abs() ** b, "maximum": torch.maximum, "minimum": torch.minimum,
    "atan2": torch.atan2, "hypot": torch.hypot, "fmod": torch.fmod, "remainder": torch.remainder,
    "logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2, "copysign": torch.copysign,
    "xlogy": torch.xlogy, "fmax": torch.fmax, "fmin": torch.fmin, "true_divide": torch.true_divide,
}  # fmt: skip
for _name, _f in BINARY.items():
    put(f"{_name}(x, w)", lambda x, w, f=_f: f(x, w))
    put(f"{_name}(w, x)", lambda x, w, f=_f: f(w, x))

# Elementwise, of a product
UNARY = {
    **{name: getattr(torch, name) for name in (
        "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "tan",
        "tanh", "sigmoid", "erf", "erfc", "lgamma", "digamma", "atan", "sinh", "cosh", "asinh",
        "abs", "square", "reciprocal", "sinc", "i0", "nan_to_num", "frac", "neg", "logit",
    )},
    **{name: getattr(F, name) for name in (
        "softplus", "gelu", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "hardtanh",
        "hardswish", "hardsigmoid", "logsigmoid", "softsign", "tanhshrink", "softshrink",
        "hardshrink", "relu", "relu6",
    )},
    "asin of tanh": lambda h: h.tanh().asin(), "acos of tanh": lambda h: h.tanh().acos(),
    "atanh of tanh": lambda h: (0.9 * h.tanh()).atanh(), "erfinv": lambda h: h.tanh().erfinv(),
    "acosh": lambda h: (h.abs() + 1.1).acosh(), "clamp": lambda h: h.clamp(-1, 1),
    "threshold": lambda h: F.threshold(h, 0.2, 0.0), "glu": lambda h: F.glu(h, -1),
}  # fmt: skip
for _name, _f in UNARY.items():
    put(f"{_name}(x * w)", lambda x, w, f=_f: f(x * w))

# Three operands
put("addcmul(w, x, x)", lambda x, w: torch.addcmul(w, x, x))
put("addcmul(x, w, x)", lambda x, w: torch.addcmul(x, w, x))
put("addcmul(x, w, w)", lambda x, w: torch.addcmul(x, w, w))
put("addcdiv(w, x, x)", lambda x, w: torch.addcdiv(w, x, x + 1))
put("addcdiv(x, w, x)", lambda x, w: torch.addcdiv(x, w, x + 1))
put("addcdiv(x, x, w)", lambda x, w: torch.addcdiv(x, x, w))
put("lerp(x, w, 0.3)", lambda x, w: torch.lerp(x, w.expand_as(x), 0.3))
put("lerp(w, x, 0.3)", lambda x, w: torch.lerp(w.expand_as(x), x, 0.3))
put("lerp(x, x, w)", lambda x, w: torch.lerp(x, 2 * x, w))
put("clamp(x, w, 2w)", lambda x, w: torch.clamp(x, w, 2 * w))
put("where(x > 0.5, w, x)", lambda x, w: torch.where(x > 0.5, w, x))
put("where(x > w, x, w)", lambda x, w: torch.where(x > w, x * w, w))
put("prelu", lambda x, w: F.prelu(x.transpose(1, 2) - 0.5, w))

# Reductions
REDUCTIONS = {
    "sum": lambda h: h.sum(-1), "mean": lambda h: h.mean(-1), "prod": lambda h: h.prod(-1),
    "amax": lambda h: h.amax(-1), "amin": lambda h: h.amin(-1), "max": lambda h: h.max(-1).values,
    "median": lambda h: h.median(-1).values, "nanmean": lambda h: h.nanmean(-1),
    "nansum": lambda h: h.nansum(-1), "var": lambda h: h.var(-1), "std": lambda h: h.std(-1),
    "var_mean": lambda h: torch.var_mean(h, -1)[0], "norm 1": lambda h: h.norm(1, -1),
    "norm 2": lambda h: h.norm(2, -1), "norm inf": lambda h: h.norm(math.inf, -1),
    "logsumexp": lambda h: h.logsumexp(-1), "cumsum": lambda h: h.cumsum(-1),
    "cumprod": lambda h: h.cumprod(-1), "cummax": lambda h: h.cummax(-1).values,
    "logcumsumexp": lambda h: h.logcumsumexp(-1), "softmax": lambda h: h.softmax(-1).square(),
    "log_softmax": lambda h: h.log_softmax(-1).square(),
    "softmin": lambda h: F.softmin(h, -1)[..., 0],
    "sort": lambda h: h.sort(-1).values[..., :2], "topk": lambda h: h.topk(2, -1).values,
    "kthvalue": lambda h: h.kthvalue(2, -1).values, "quantile": lambda h: h.quantile(0.4, -1),
    "renorm": lambda h: torch.renorm(h[0], 2, 0, 1.0), "diff": lambda h: h.diff(dim=-1).square(),
    "trapezoid": lambda h: torch.trapezoid(h.square()), "aminmax": lambda h: h.aminmax(dim=-1).max,
}  # fmt: skip
for _name, _f in REDUCTIONS.items():
    put(f"{_name} of x * w", lambda x, w, f=_f: f(x * w))

# Linear algebra
EYE = torch.eye(ROWS)


def gram(x: Tensor, w: Tensor) -> Tensor:
    """[4, 4], symmetric and positive definite for ordinary records."""
    h = x[0] * w
    return h @ h.T + 2 * EYE


ALGEBRA = {
    "det": torch.linalg.det, "slogdet": lambda a: torch.linalg.slogdet(a).logabsdet,
    "inv": torch.linalg.inv, "cholesky": torch.linalg.cholesky,
    "qr": lambda a: torch.linalg.qr(a).R,
    "eigvalsh": torch.linalg.eigvalsh, "svdvals": torch.linalg.svdvals, "pinv": torch.linalg.pinv,
    "matrix_exp": lambda a: torch.linalg.matrix_exp(0.1 * a), "trace": torch.trace,
    "matrix_power": lambda a: torch.linalg.matrix_power(a, 3), "tril": torch.tril,
    "matrix_norm": torch.linalg.matrix_norm, "cov": torch.cov, "corrcoef": torch.corrcoef,
    "cholesky_inverse": lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)),
}  # fmt: skip
for _name, _f in ALGEBRA.items():
    put(f"{_name} of x w w' x'", lambda x, w, f=_f: f(gram(x, w)))
put("x @ w", lambda x, w: x @ w, SQUARE)
put("w @ x", lambda x, w: w @ x, (3, ROWS))
put("w @ x @ v", lambda x, w, v: w @ x @ v, (3, ROWS), SQUARE)
put("bmm(x, w)", lambda x, w: torch.bmm(x, w), (1, COLUMNS, 3))
put("mv(x, w)", lambda x, w: torch.mv(x[0], w))
put("vecdot", lambda x, w: torch.linalg.vecdot(x, w.expand_as(x)))
put("outer", lambda x, w: torch.outer(x[0, 0], w).square())
put("kron", lambda x, w: torch.kron(x[0], w).square(), (2, 2))
put("tensordot", lambda x, w: torch.tensordot(x, w, ([1, 2], [0, 1])), (ROWS, COLUMNS, 3))
put("einsum bij,jk->bik", lambda x, w: torch.einsum("bij,jk->bik", x, w), SQUARE)
put("einsum bij,ij->b", lambda x, w: torch.einsum("bij,ij->b", x, w), MATRIX)
put("einsum bij,bik,jk->b", lambda x, w: torch.einsum("bij,bik,jk->b", x, x, w), SQUARE)
put("cross", lambda x, w: torch.linalg.cross(x[..., :3], w.expand(1, ROWS, 3)).square(), (3,))
put("solve(w, x)", lambda x, w: torch.linalg.solve(w + 3 * EYE, x), (ROWS, ROWS))
put("solve(x, w)", lambda x, w: torch.linalg.solve(gram(x, torch.ones(COLUMNS)), w), (ROWS, 2))
put(
    "solve_triangular",
    lambda x, w: torch.linalg.solve_triangular(w.tril() + 3 * EYE, x, upper=False),
    (ROWS, ROWS),
)
put("lstsq", lambda x, w: torch.linalg.lstsq(x[0].T @ w, x[0].T).solution, (ROWS, 2))
put("addmm(w, x, w)", lambda x, v, w: torch.addmm(v, x[0], w), (3,), (COLUMNS, 3))
put("baddbmm", lambda x, v, w: torch.baddbmm(v, x, w), (1, ROWS, 3), (1, COLUMNS, 3))
put("addmv", lambda x, v, w: torch.addmv(v, x[0], w), (ROWS,), VECTOR)
put("addr", lambda x, w, v: torch.addr(w, x[0, :, 0], v).square(), (ROWS, COLUMNS), VECTOR)
put("multi_dot", lambda x, w, v: torch.linalg.multi_dot([w, x[0], v]), (3, ROWS), SQUARE)
put("cdist 2", lambda x, w: torch.cdist(x, w), (1, 3, COLUMNS))
put("cdist 1", lambda x, w: torch.cdist(x, w, p=1.0), (1, 3, COLUMNS))
put("pairwise_distance", lambda x, w: F.pairwise_distance(x, w.expand_as(x)))
put("cosine_similarity", lambda x, w: F.cosine_similarity(x, w.expand_as(x), -1))
put("bilinear", lambda x, w: F.bilinear(x, x, w), (3, COLUMNS, COLUMNS))
put("linear with a bias", lambda x, w, b: F.linear(x, w, b), (3, COLUMNS), (3,))

# Normalisation
put("layer_norm", lambda x, w, b: F.layer_norm(x, VECTOR, w, b), VECTOR, VECTOR)
put("layer_norm of x * w", lambda x, w: F.layer_norm(x * w, VECTOR).square())
put("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), (ROWS,), (ROWS,))
put("instance_norm", lambda x, w, b: F.instance_norm(x, None, None, w, b), (ROWS,), (ROWS,))
put("rms_norm", lambda x, w: F.rms_norm(x, VECTOR, w))
put("local_response_norm", lambda x, w: F.local_response_norm(x * w, 2))
put("normalize", lambda x, w: F.normalize(x * w, dim=-1))
layer("batch norm in eval mode", lambda: nn.BatchNorm1d(ROWS).eval())
layer("weight norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(COLUMNS, 3)))
layer("orthogonal weights", lambda: nn.utils.parametrizations.orthogonal(nn.Linear(COLUMNS, 3)))

# Attention
put("attention to weights", lambda x, w: F.scaled_dot_product_attention(x, w, w), (1, 3, COLUMNS))
put("attention of weights", lambda x, w: F.scaled_dot_product_attention(w, x, x), (1, 3, COLUMNS))
put(
    "attention with a learned mask",
    lambda x, w: F.scaled_dot_product_attention(x, x, x, attn_mask=w),
    (ROWS, ROWS),
)
put(
    "causal attention",
    lambda x, w: F.scaled_dot_product_attention(x @ w, x, x, is_causal=True),
    SQUARE,
)
layer("MultiheadAttention", lambda: nn.MultiheadAttention(6, 2, batch_first=True),
      lambda x, m: m(x, x, x)[0])  # fmt: skip
layer("TransformerEncoderLayer",
      lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True))  # fmt: skip
layer("TransformerDecoderLayer",
      lambda: nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
      lambda x, m: m(x, x))  # fmt: skip

# Convolution
put("conv1d", lambda x, w, b: F.conv1d(x, w, b), (3, ROWS, 2), (3,))
put("conv1d, dilated and strided", lambda x, w: F.conv1d(x, w, None, 2, 2, 2), (3, ROWS, 2))
put("conv1d, depthwise", lambda x, w: F.conv1d(x, w, groups=ROWS), (ROWS, 1, 3))
put("conv1d with the record as its filter", lambda x, w: F.conv1d(w, x[:, :, :2]), (1, ROWS, 7))
put("conv2d", lambda x, w: F.conv2d(x.unsqueeze(1), w, padding=1), (2, 1, 3, 3))
put("conv3d", lambda x, w: F.conv3d(x.view(1, 1, 2, 2, 6), w), (2, 1, 2, 2, 2))
put("conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w, stride=2), (ROWS, 3, 2))
put("conv_transpose2d", lambda x, w: F.conv_transpose2d(x.unsqueeze(1), w), (1, 2, 2, 2))
put("unfold and matmul", lambda x, w: w @ F.unfold(x.unsqueeze(1), 2), (3, 4))
put("fold", lambda x, w: F.fold(x * w, (3, 4), 2).square())
layer(
    "Conv1d with circular padding", lambda: nn.Conv1d(4, 3, 3, padding=1, padding_mode="circular")
)
layer(
    "Conv1d with reflected padding", lambda: nn.Conv1d(4, 3, 3, padding=1, padding_mode="reflect")
)

# Embedding and indexing
INDEX = torch.tensor([0, 2, 1, 2, 0, 1])


def index_of(x: Tensor) -> Tensor:
    return (x.nan_to_num(0, 0, 0).clamp(0, 0.99) * 5).long()


put("embedding", lambda x, w: F.embedding(index_of(x), w) * x.unsqueeze(-1), (5, 3))
put("embedding_bag, sum", lambda x, w: F.embedding_bag(index_of(x[0]), w, mode="sum"), (5, 3))
put("embedding_bag, max", lambda x, w: F.embedding_bag(index_of(x[0]), w, mode="max"), (5, 3))
put(
    "embedding_bag, weighted",
    lambda x, w: F.embedding_bag(index_of(x[0]), w, mode="sum", per_sample_weights=x[0]),
    (5, 3),
)
put("index_select", lambda x, w: (x * w).index_select(-1, INDEX))
put("gather", lambda x, w: (x * w).gather(-1, INDEX.expand(1, ROWS, -1)))
put("take_along_dim", lambda x, w: torch.take_along_dim(w.expand_as(x) * x, index_of(x), -1))
put("scatter_add", lambda x, w: torch.zeros(1, ROWS, 3).scatter_add(-1, INDEX.expand_as(x), x * w))
put("index_add", lambda x, w: torch.zeros(1, ROWS, 3).index_add(-1, INDEX, x * w))
put("scatter_reduce", lambda x, w: torch.zeros(1, ROWS, 3).scatter_reduce(
    -1, INDEX.expand_as(x), x * w, "amax"))  # fmt: skip
put("one_hot", lambda x, w: F.one_hot(index_of(x), 5).float() @ w * x.unsqueeze(-1), (5, 3))
put("masked_fill", lambda x, w: (x * w).masked_fill(x > 0.5, 0.0))
put("masked_select by product", lambda x, w: (x * w) * (x > 0.5))

# Recurrent
for _name, _kind, _settings in (
    ("LSTM", nn.LSTM, {}), ("LSTM of two layers", nn.LSTM, {"num_layers": 2}),
    ("LSTM, bidirectional", nn.LSTM, {"bidirectional": True}),
    ("LSTM with a projection", nn.LSTM, {"proj_size": 2}),
    ("GRU", nn.GRU, {}), ("GRU without bias", nn.GRU, {"bias": False}), ("RNN, tanh", nn.RNN, {}),
    ("RNN, relu", nn.RNN, {"nonlinearity": "relu"}),
):  # fmt: skip
    layer(_name, lambda k=_kind, s=_settings: k(6, 3, batch_first=True, **s), lambda x, m: m(x)[0])
layer("LSTMCell", lambda: nn.LSTMCell(6, 3), lambda x, m: m(x[0])[0])
layer("GRUCell", lambda: nn.GRUCell(6, 3), lambda x, m: m(x[0]))
layer("RNNCell", lambda: nn.RNNCell(6, 3), lambda x, m: m(x[0]))

# Losses
LOSSES = {
    "mse_loss": F.mse_loss, "l1_loss": F.l1_loss, "huber_loss": F.huber_loss,
    "smooth_l1_loss": F.smooth_l1_loss, "poisson_nll_loss": F.poisson_nll_loss,
    "bce_with_logits": lambda h, t: F.binary_cross_entropy_with_logits(h, t.sigmoid()),
    "bce": lambda h, t: F.binary_cross_entropy(h.sigmoid(), t.sigmoid()),
    "kl_div": lambda h, t: F.kl_div(h.log_softmax(-1), t.softmax(-1)),
    "gaussian_nll": lambda h, t: F.gaussian_nll_loss(h, t, h.square() + 0.1),
    "cosine_embedding_loss": lambda h, t: F.cosine_embedding_loss(h[0], t[0], torch.ones(ROWS)),
    "margin_ranking_loss": lambda h, t: F.margin_ranking_loss(h, t, torch.ones_like(h)),
    "soft_margin_loss": lambda h, t: F.soft_margin_loss(h, t.sign()),
    "hinge_embedding_loss": lambda h, t: F.hinge_embedding_loss(h, t.sign()),
    "triplet_margin_loss": lambda h, t: F.triplet_margin_loss(h, t, t.flip(-1)),
    "cross_entropy": lambda h, t: F.cross_entropy(h[0], t[0].softmax(-1)),
    "nll_loss": lambda h, t: F.nll_loss(h[0].log_softmax(-1), INDEX[:ROWS]),
    "multilabel_soft_margin": lambda h, t: F.multilabel_soft_margin_loss(h[0], t[0].sigmoid()),
    "multi_margin_loss": lambda h, t: F.multi_margin_loss(h[0], INDEX[:ROWS]),
    "ctc_loss": lambda h, t: F.ctc_loss(
        h[0].log_softmax(-1).unsqueeze(1), INDEX[:2].unsqueeze(0) + 1, (ROWS,), (2,)),
}  # fmt: skip
for _name, _f in LOSSES.items():
    put(f"{_name} of x * w and x", lambda x, w, f=_f: f(x * w, x.detach()))

# Shapes, pooling, sampling
SHAPES = {
    "cat": lambda h: torch.cat([h, h.flip(-1)]).square(), "roll": lambda h: h * h.roll(1, -1),
    "stack": lambda h: torch.stack([h, h]).prod(0), "rot90": lambda h: torch.rot90(h, 1, (1, 2))**2,
    "reflection pad": lambda h: F.pad(h, (2, 2), mode="reflect").square(),
    "replication pad": lambda h: F.pad(h, (2, 2), mode="replicate").square(),
    "circular pad": lambda h: F.pad(h, (2, 2), mode="circular").square(),
    "pixel_shuffle": lambda h: F.pixel_shuffle(h.view(1, 4, 2, 3), 2).square(),
    "interpolate, nearest": lambda h: F.interpolate(h, 9).square(),
    "interpolate, linear": lambda h: F.interpolate(h, 9, mode="linear").square(),
    "interpolate, bicubic": lambda h: F.interpolate(h[None], (5, 9), mode="bicubic").square(),
    "grid_sample": lambda h: F.grid_sample(h[None], h.view(1, 3, 4, 2).tanh()),
    "avg_pool1d": lambda h: F.avg_pool1d(h, 2).square(), "max_pool1d": lambda h: F.max_pool1d(h, 2),
    "max_pool2d": lambda h: F.max_pool2d(h, 2), "adaptive_avg_pool1d": lambda h:
        F.adaptive_avg_pool1d(h, 4).square(), "adaptive_max_pool1d": lambda h:
        F.adaptive_max_pool1d(h, 4), "lp_pool1d": lambda h: F.lp_pool1d(h, 2.0, 2),
    "repeat": lambda h: h.repeat(1, 2, 1).square(), "diag_embed": lambda h: h.diag_embed().square(),
    "unfold": lambda h: h.unfold(-1, 3, 2).square(), "flatten": lambda h: h.flatten().square(),
    "rfft": lambda h: torch.fft.rfft(h).abs(), "fft2": lambda h: torch.fft.fft2(h).abs(),
    "channel_shuffle": lambda h: F.channel_shuffle(h.view(1, 4, 2, 3), 2).square(),
}  # fmt: skip
for _name, _f in SHAPES.items():
    put(f"{_name} of x * w", lambda x, w, f=_f: f(x * w))
put("a complex weight", lambda x, w: (x * torch.view_as_complex(w)).abs(), (COLUMNS, 2))
put(
    "a spectral convolution",
    lambda x, w: torch.fft.irfft(torch.fft.rfft(x) * w),
    (COLUMNS // 2 + 1,),
)


class Cube(torch.autograd.Function):
    """A function of the user's own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x**3 * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * 3 * x**2 * w, (grad * x**3).sum((0, 1))


put("a custom function", Cube.apply)
