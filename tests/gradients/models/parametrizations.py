"""Weights that are computed from parameters by torch's own tools."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from tests.gradients.table import Call, raw, row, rows, squares

rows(
    "weight_norm",
    lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 3)),
        nn.Tanh(),
        parametrizations.weight_norm(nn.Linear(3, 2)),
    ),
    (5, 4),
)
rows("weight_norm_conv", lambda: parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), (4, 3, 5, 5))
rows(
    "weight_norm_twice",
    lambda: Call(
        lambda m, x: m.layer(m.layer(x).tanh()),
        layer=parametrizations.weight_norm(nn.Linear(4, 4)),
    ),
    (5, 3, 4),
)
rows("orthogonal", lambda: parametrizations.orthogonal(nn.Linear(4, 4)), (5, 4))
rows("spectral_norm", lambda: parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), (5, 4))
rows(
    "spectral_norm_conv",
    lambda: parametrizations.spectral_norm(nn.Conv1d(3, 4, 2)).eval(),
    (5, 3, 6),
)


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(4, 3))


rows("weight_norm_by_hook", old_weight_norm, (5, 3, 4))
rows("spectral_norm_by_hook", lambda: nn.utils.spectral_norm(nn.Linear(4, 3)).eval(), (5, 3, 4))
rows(
    "pruned",
    lambda: prune.l1_unstructured(nn.Linear(4, 3), "weight", amount=0.4),
    (5, 3, 4),
)


class Buffered(nn.Module):
    """Buffers that enter the function: an offset, and a mask of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("mask", torch.ones(3, 4).tril())

    def forward(self, x):
        weight = self.layer.weight * self.mask
        return nn.functional.linear(x - self.mean, weight, self.layer.bias)


rows("buffers", Buffered, (5, 3, 4))


class Sign(torch.autograd.Function):
    """Forward a sign, backward the identity within one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w):
        return w.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0].abs() <= 0.6)


class Mirrored(Sign):
    """Its backward moves entries, so that it is not pointwise."""

    @staticmethod
    def backward(ctx, grad):
        return grad.flip(0)


def quantized(m, x):
    level = (m.w / m.s).clamp(-2, 2)
    return nn.functional.linear(x, (level + (level.round() - level).detach()) * m.s)


VECTOR, POSITIONS = (5, 4), (5, 3, 4)
ENDS = {"": VECTOR, "_at_positions": POSITIONS}
for _end, _shape in ENDS.items():
    raw(f"quantized_weight{_end}", quantized, _shape, w=(3, 4), s=())
    raw(f"sign_of_weight{_end}", lambda m, x: x @ Sign.apply(m.w), _shape, w=(4, 3))
    raw(f"mirrored_weight{_end}", lambda m, x: x @ Mirrored.apply(m.w), _shape, w=(4, 3))
    raw(
        f"low_rank_weight{_end}",
        lambda m, x: x @ (m.w + m.a @ m.b),
        _shape,
        w=(4, 3),
        a=(4, 2),
        b=(2, 3),
    )
    raw(f"exponential_weight{_end}", lambda m, x: x @ (3 * m.w).matrix_exp(), _shape, w=(4, 4))
    raw(f"turned_weight{_end}", lambda m, x: x @ (m.w - m.w.mT).matrix_exp(), _shape, w=(4, 4))
    raw(f"gated_weight{_end}", lambda m, x: x @ (m.w * m.w.sigmoid()), _shape, w=(4, 3))
    raw(
        f"weight_with_row_and_column{_end}",
        lambda m, x: x @ (m.w * m.row.exp() / (m.column.square() + 1) - m.row),
        _shape,
        w=(4, 3),
        row=(3,),
        column=(4, 1),
    )
    raw(
        f"weights_of_one_source{_end}",
        lambda m, x: (x @ (2 * m.w)).tanh() @ (m.w + m.v).t() @ m.v,
        _shape,
        w=(4, 3),
        v=(4, 3),
    )
raw("sum_of_two_weights", lambda m, x: x @ (m.w + m.v), VECTOR, w=(4, 3), v=(4, 3))
raw("scaled_table", lambda m, x: (m.w * m.s)[x.abs().long()].tanh(), VECTOR, w=(9, 3), s=(3,))
raw("masked_table", lambda m, x: m.w.tril()[x.abs().long()].tanh(), POSITIONS, w=(9, 3))
raw("positive_scale", lambda m, x: x * nn.functional.softplus(m.s) @ m.w, VECTOR, s=(4,), w=(4, 2))


def penalised(model, x):
    decay = sum(p.square().sum() for p in model.parameters())
    return squares(model, x) + 0.1 * decay * x.mean()


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


row("penalty_times_record", dense, lambda: torch.randn(VECTOR), penalised)
row("penalty_at_positions", dense, lambda: torch.randn(POSITIONS), penalised)
row(
    "penalty_of_convolution",
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2)),
    lambda: torch.randn(4, 3, 5, 5),
    penalised,
)
row(
    "penalty_of_packed_weights",
    lambda: Call(
        lambda m, x: m.mix(x[:, :1], x, x)[0], mix=nn.MultiheadAttention(4, 2, batch_first=True)
    ),
    lambda: torch.randn(POSITIONS),
    penalised,
)
row(
    "penalty_of_tables",
    lambda: nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 2)),
    lambda: torch.randint(7, (5, 3)),
    lambda m, x: squares(m, x) + m[0].weight.norm() * m[1].weight.abs().sum(),
)
row(
    "penalty_of_weight_norm",
    lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    lambda: torch.randn(VECTOR),
    penalised,
)
