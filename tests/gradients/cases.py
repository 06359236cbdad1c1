"""The table of models that the engine must get right. One row: a name and a function that builds

    (model, batch, loss_fn, take, number of samples)

`take(batch, i)` gives sample i alone; batches are small and sizes differ from each other, except
where a row is about sizes that coincide.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.oracles import take_first


class Case(NamedTuple):
    model: nn.Module
    batch: Any
    loss_fn: Callable[[nn.Module, Any], Tensor]
    take: Callable[[Any, int], Any]
    num_samples: int


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    CASES[build.__name__] = build
    return build


def squares(model: nn.Module, x: Any) -> Tensor:
    """A loss that reaches every output, each in its own way."""
    out = model(x)
    return uneven(out[0] if isinstance(out, tuple) else out)


def uneven(out: Tensor) -> Tensor:
    flat = out.flatten(1)
    return ((flat - 0.3).square() * torch.linspace(0.5, 1.5, flat.shape[1])).sum(1)


def plain(model: nn.Module, x: Any, n: int, loss_fn=squares) -> Case:
    return Case(model, x, loss_fn, take_first, n)


def rows(name: str, build: Callable[[], nn.Module], *shape: int) -> None:
    CASES[name] = lambda: plain(build(), torch.randn(*shape), shape[0])


def lead(model: nn.Module, *shape: int) -> nn.Module:
    """A layer below, so that the input of `model` carries a gradient of its own."""
    return nn.Sequential(nn.Linear(shape[-1], shape[-1]), model)


# Linear
rows("linear", lambda: nn.Linear(4, 3), 5, 4)
rows("linear_without_bias", lambda: nn.Linear(4, 3, bias=False), 5, 4)
for _shape in [(5, 6, 4), (5, 6, 2, 4), (5, 2, 3, 2, 4)]:
    rows(
        f"linear_on_{len(_shape)}d",
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        *_shape,
    )
rows(
    "linear_long_sequence",
    lambda: nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 50)),
    3,
    9,
    3,
)
rows(
    "linear_very_long_sequence",
    lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)),
    3,
    200,
    3,
)
rows(
    "linear_wide_gram",
    lambda: nn.Sequential(nn.Linear(3, 400), nn.Tanh(), nn.Linear(400, 300)),
    3,
    65,
    3,
)


class Constant(nn.Module):
    """An output that depends on a parameter, beside a layer that may have nothing to do."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.offset = layer, nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sum(1)[:, :2] + self.offset


class Projections(nn.Module):
    """Three layers read one tensor, and are wide enough for Gram sums."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(96, 96) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


rows(
    "attention_projections_read_one_input",
    lambda: nn.Sequential(nn.Linear(8, 96), Projections(), nn.Linear(96, 2)),
    3,
    12,
    8,
)


class Padded(nn.Module):
    """Most positions count for nothing, for each sample others."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 96), nn.Tanh(), Projections(), nn.Linear(96, 80))
        self.tied = nn.Linear(80, 80)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return (self.tied(hidden) + self.tied(hidden.tanh())) * (x[..., :1] > 0.7)


rows("padded_positions", Padded, 5, 24, 8)


class TwoMasks(nn.Module):
    """Two layers read one tensor; for each, as many positions count, but others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 48), nn.Linear(64, 48)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).unsqueeze(1)
        return self.first(x) * (places < 6) + self.second(x) * (places >= x.shape[1] - 6)


rows("other_positions_for_each_layer", TwoMasks, 5, 24, 64)
rows("linear_on_no_positions", lambda: Constant(nn.Linear(4, 3)), 5, 0, 4)
rows(
    "as_many_positions_as_samples",
    lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)),
    4,
    4,
    4,
)
rows("batch_of_two", lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), 2, 3, 4)
rows("batch_of_one", lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), 1, 3, 4)

# Convolutions
for _mode in ("zeros", "circular", "reflect", "replicate"):
    rows(f"conv2d_{_mode}", lambda m=_mode: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode=m), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=2, padding_mode=m)), 4, 3, 6, 7)  # fmt: skip
rows(
    "conv2d_stride_dilation",
    lambda: nn.Conv2d(3, 4, 3, stride=2, padding=2, dilation=2),
    4,
    3,
    9,
    8,
)
rows("conv2d_same", lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.Conv2d(4, 4, 5, padding="same")), 4, 3, 6, 7)  # fmt: skip
rows(
    "conv2d_valid_no_bias", lambda: nn.Conv2d(3, 4, (2, 3), padding="valid", bias=False), 4, 3, 6, 7
)
rows("conv2d_groups", lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), nn.Conv2d(6, 6, 3, groups=3)), 4, 4, 7, 7)  # fmt: skip
rows("conv2d_depthwise", lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), 4, 4, 5, 5)
rows("conv2d_kernel_wider_than_stride", lambda: nn.Sequential(nn.Conv2d(1, 4, 8, stride=2, padding=2), nn.Tanh(), nn.Conv2d(4, 6, 4, stride=2)), 5, 1, 20, 20)  # fmt: skip
rows("conv2d_many_channels", lambda: nn.Sequential(nn.Conv2d(16, 24, 3, padding=1), nn.Tanh(), nn.Conv2d(24, 16, 3, dilation=2)), 3, 16, 9, 8)  # fmt: skip
rows("conv2d_few_positions", lambda: nn.Conv2d(16, 32, 3), 3, 16, 4, 4)
rows("conv2d_few_positions_groups", lambda: nn.Conv2d(32, 32, 3, groups=2, stride=2), 3, 32, 5, 5)
rows("conv2d_pointwise", lambda: nn.Conv2d(4, 5, 1), 3, 4, 3, 3)
rows(
    "conv1d",
    lambda: nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv1d(4, 5, 3, stride=2)),
    4,
    3,
    9,
)
rows("conv1d_few_positions", lambda: nn.Conv1d(16, 32, 3, dilation=2), 4, 16, 6)
rows(
    "conv3d",
    lambda: nn.Sequential(nn.Conv3d(2, 3, 2), nn.Tanh(), nn.Conv3d(3, 2, 2, padding=1)),
    3,
    2,
    4,
    3,
    4,
)
rows("conv_transpose1d", lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), 4, 3, 5)
rows("conv_transpose2d", lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), nn.Tanh(), nn.ConvTranspose2d(6, 2, 2)), 4, 4, 4, 3)  # fmt: skip
rows("conv_transpose3d", lambda: nn.ConvTranspose3d(2, 3, 2, dilation=2), 3, 2, 3, 3, 3)


class Frames(nn.Module):
    """Each sample has several frames, [n, t, ...], which the layers see as so many samples."""

    def __init__(self, *layers: nn.Module, samples_inside: bool = False):
        super().__init__()
        self.layers, self.samples_inside = nn.Sequential(*layers), samples_inside

    def forward(self, x):
        x = x.transpose(0, 1) if self.samples_inside else x
        out = self.layers(x.flatten(0, 1)).tanh().unflatten(0, x.shape[:2])
        return out.transpose(0, 1) if self.samples_inside else out


rows("conv_over_frames", lambda: Frames(nn.Conv2d(2, 3, 3)), 4, 3, 2, 5, 5)
rows("conv_over_frames_samples_inside", lambda: Frames(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 4, 2), samples_inside=True), 4, 3, 2, 5, 5)  # fmt: skip
rows("conv_over_frames_stride_padding_groups", lambda: Frames(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(6, 34, 3, padding=2, groups=2)), 5, 2, 4, 7, 6)  # fmt: skip
rows("conv1d_over_frames", lambda: Frames(nn.Conv1d(3, 5, 3, dilation=2)), 4, 3, 3, 8)
rows("conv_transpose_over_frames", lambda: Frames(nn.ConvTranspose2d(2, 3, 3, stride=2)), 4, 3, 2, 5, 5)  # fmt: skip


# Embeddings
def tokens(n: int, t: int, vocabulary: int = 7) -> Tensor:
    return torch.randint(vocabulary, (n, t))


@case
def embedding() -> Case:
    return plain(nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)), tokens(5, 9), 5)


@case
def embedding_padding_idx() -> Case:
    return plain(nn.Sequential(nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 3)), tokens(5, 9), 5)


@case
def embedding_one_token() -> Case:
    return plain(nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)), torch.randint(7, (5,)), 5)


@case
def embedding_sparse() -> Case:
    return plain(nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Linear(4, 3)), tokens(5, 9), 5)


@case
def embedding_bag() -> Case:
    return plain(nn.Sequential(nn.EmbeddingBag(7, 4, mode="sum"), nn.Linear(4, 3)), tokens(5, 6), 5)


@case
def embedding_bag_mean() -> Case:
    return plain(
        nn.Sequential(nn.EmbeddingBag(7, 4, mode="mean"), nn.Linear(4, 3)), tokens(5, 6), 5
    )


@case
def embedding_bag_max() -> Case:
    return plain(nn.Sequential(nn.EmbeddingBag(7, 4, mode="max"), nn.Linear(4, 3)), tokens(5, 6), 5)


@case
def tied_embedding_and_head() -> Case:
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(11, 6)
            self.mix = nn.Linear(6, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(self.mix(self.table(x)).tanh())

    def loss(model, x):
        return F.cross_entropy(model(x[:, :-1]).transpose(1, 2), x[:, 1:], reduction="none").sum(1)

    return plain(Language(), tokens(5, 8, 11), 5, loss)


# Normalisation
rows("layer_norm", lambda: lead(nn.LayerNorm(4), 4), 5, 6, 4)
rows("layer_norm_2d", lambda: nn.LayerNorm((3, 4)), 5, 2, 3, 4)
rows("layer_norm_no_affine", lambda: lead(nn.LayerNorm(4, elementwise_affine=False), 4), 5, 6, 4)
rows("layer_norm_no_bias", lambda: lead(nn.LayerNorm(4, bias=False), 4), 5, 4)
rows(
    "group_norm",
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()),
    5,
    3,
    6,
    6,
)
rows(
    "group_norm_no_affine",
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4, affine=False)),
    5,
    3,
    6,
    6,
)
rows("group_norm_1d", lambda: lead(nn.GroupNorm(2, 4), 4), 5, 4)
rows("instance_norm", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Tanh()), 5, 3, 6, 6)  # fmt: skip
rows(
    "instance_norm_no_affine",
    lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.InstanceNorm1d(4)),
    5,
    3,
    6,
)
rows("rms_norm", lambda: lead(nn.RMSNorm(4), 4), 5, 6, 4)
rows("rms_norm_no_affine", lambda: lead(nn.RMSNorm(4, elementwise_affine=False), 4), 5, 6, 4)


@case
def batch_norm_in_eval_mode() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5))  # fmt: skip
    with torch.no_grad():
        model(torch.randn(8, 3, 6, 6))
    return plain(model.eval(), torch.randn(5, 3, 6, 6), 5)


# Activations and products
rows("prelu", lambda: lead(nn.PReLU(), 4), 5, 4)
rows("prelu_channels", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU(4)), 5, 3, 5, 5)
rows("inplace_relu", lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3), nn.LeakyReLU(inplace=True), nn.Linear(3, 2)), 5, 4)  # fmt: skip


@case
def bilinear() -> Case:
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.product = nn.Linear(4, 3), nn.Bilinear(3, 4, 5)

        def forward(self, x):
            return self.product(self.first(x), x)

    return plain(Two(), torch.randn(5, 4), 5)


class Raw(nn.Module):
    """A module made of raw parameters and a function."""

    def __init__(self, function: Callable[..., Tensor], **shapes: tuple[int, ...]):
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) * 0.5))

    def forward(self, x):
        return self.function(self, x)


def raw(name: str, function: Callable[..., Tensor], *shape: int, **shapes: tuple[int, ...]) -> None:
    CASES[name] = lambda: plain(Raw(function, **shapes), torch.randn(*shape), shape[0])


raw("class_token_by_expand", lambda m, x: (torch.cat([m.token.expand(x.shape[0], -1, -1), x], 1) @ m.w).tanh(), 5, 3, 4, token=(1, 1, 4), w=(4, 3))  # fmt: skip
raw("class_token_by_repeat", lambda m, x: torch.cat([m.token.repeat(x.shape[0], 1, 1), x @ m.w], 1), 5, 3, 4, token=(1, 1, 4), w=(4, 4))  # fmt: skip
raw("position_table_by_broadcast", lambda m, x: ((x + m.table[: x.shape[1]]) @ m.w).tanh(), 5, 3, 4, table=(6, 4), w=(4, 2))  # fmt: skip
raw("layer_scale", lambda m, x: x + m.scale * (x @ m.w).tanh(), 5, 3, 4, scale=(4,), w=(4, 4))
raw(
    "temperature_and_scalar",
    lambda m, x: (x @ m.w) * m.log_t.exp() + m.shift,
    5,
    4,
    w=(4, 3),
    log_t=(),
    shift=(),
)
raw(
    "division_by_parameter",
    lambda m, x: (x @ m.w) / (m.d.square() + 1) - m.s,
    5,
    4,
    w=(4, 3),
    d=(3,),
    s=(3,),
)
raw("einsum", lambda m, x: torch.einsum("bti,io->bto", x, m.w).tanh(), 5, 3, 4, w=(4, 2))
raw("einsum_heads", lambda m, x: torch.einsum("bti,hio->bhto", x, m.w).tanh(), 5, 3, 4, w=(2, 4, 3))
raw(
    "einsum_per_group",
    lambda m, x: torch.einsum("bgi,gio->bgo", x, m.w).tanh(),
    5,
    3,
    4,
    w=(3, 4, 2),
)
raw("matmul_weight_first", lambda m, x: (m.w @ x.transpose(1, 2)).tanh(), 5, 3, 4, w=(2, 4))
raw("bmm_expanded", lambda m, x: torch.bmm(x, m.w.expand(x.shape[0], -1, -1)), 5, 3, 4, w=(1, 4, 2))
raw("baddbmm", lambda m, x: torch.baddbmm(m.b, x.transpose(0, 1), m.w).transpose(0, 1), 5, 3, 4, w=(3, 4, 2), b=(3, 1, 2))  # fmt: skip
raw(
    "addmm_scaled",
    lambda m, x: torch.addmm(m.b, x, m.w, beta=0.5, alpha=2.0),
    5,
    4,
    w=(4, 2),
    b=(2,),
)
raw("weight_used_twice", lambda m, x: (x @ m.w).tanh() @ m.w, 5, 4, w=(4, 4))
raw("weight_used_twice_transposed", lambda m, x: (x @ m.w).tanh() @ m.w.t(), 5, 3, 4, w=(4, 6))
raw("weight_slices_overlap", lambda m, x: x @ m.w[:, :3] + x @ m.w[:, 1:4], 5, 4, w=(4, 5))
raw("weight_slices_apart", lambda m, x: x @ m.w[:, :2] + x @ m.w[:, 2:], 5, 3, 4, w=(4, 4))
raw("normalised_weight", lambda m, x: x @ F.normalize(m.w, dim=0), 5, 4, w=(4, 3))
raw(
    "softmax_of_parameter",
    lambda m, x: (x.unsqueeze(-1) * m.a.softmax(0)).sum(-1) @ m.w,
    5,
    4,
    a=(3,),
    w=(4, 2),
)
raw("masked_weight", lambda m, x: x @ (m.w * torch.ones(4, 3).tril()), 5, 4, w=(4, 3))
raw("gathered_rows", lambda m, x: m.table[x.argmax(-1)] + x @ m.w, 5, 3, 4, table=(4, 2), w=(4, 2))
raw("power_of_parameter", lambda m, x: x.abs().add(0.1) ** m.p @ m.w, 5, 4, p=(4,), w=(4, 2))
raw(
    "where_with_parameter",
    lambda m, x: torch.where(x > 0, x @ m.w, m.fill),
    5,
    4,
    w=(4, 4),
    fill=(4,),
)
raw(
    "outer_product_state",
    lambda m, x: torch.cdist(x @ m.w, m.centres),
    5,
    3,
    4,
    w=(4, 2),
    centres=(6, 2),
)
raw("batch_second_inside", lambda m, x: ((x.transpose(0, 1) @ m.w).tanh() @ m.v).transpose(0, 1), 5, 3, 4, w=(4, 3), v=(3, 2))  # fmt: skip
raw(
    "merged_rows",
    lambda m, x: F.linear(x.reshape(-1, 4), m.w).tanh().reshape(x.shape[0], -1),
    5,
    3,
    4,
    w=(2, 4),
)
raw("merged_rows_batch_second", lambda m, x: (F.linear(x.transpose(0, 1).reshape(-1, 4), m.w, m.b).tanh() @ m.v).view(3, x.shape[0], 2).transpose(0, 1), 5, 3, 4, w=(2, 4), b=(2,), v=(2, 2))  # fmt: skip
raw("unused_parameter", lambda m, x: x @ m.w, 5, 4, w=(4, 2), nothing=(3,))
raw("integer_one_hot", lambda m, x: F.one_hot(x.argmax(-1), 4).to(x.dtype) @ m.w, 5, 3, 4, w=(4, 2))
raw("fourier", lambda m, x: torch.fft.rfft(x @ m.w).abs(), 5, 4, w=(4, 6))
raw("complex_filter", lambda m, x: torch.fft.irfft(torch.fft.rfft(x @ m.w) * torch.view_as_complex(m.f), n=6), 5, 4, w=(4, 6), f=(4, 2))  # fmt: skip
raw("cumulative", lambda m, x: torch.cumsum(x * m.a, 1), 5, 3, 4, a=(4,))
raw("scaled_dot_product", lambda m, x: F.scaled_dot_product_attention(x @ m.q, x @ m.k, x @ m.v), 5, 6, 4, q=(4, 4), k=(4, 4), v=(4, 4))  # fmt: skip
raw(
    "learned_queries",
    lambda m, x: (m.q @ (x @ m.k).transpose(1, 2)).softmax(-1) @ x,
    5,
    6,
    4,
    q=(3, 4),
    k=(4, 4),
)


# Parametrizations
rows("weight_norm", lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))), 5, 4)  # fmt: skip
rows("orthogonal", lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), 5, 4)
rows(
    "weight_norm_conv",
    lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
    4,
    3,
    5,
    5,
)


@case
def spectral_norm() -> Case:
    return plain(
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), torch.randn(5, 4), 5
    )


# Attention and transformers
def attention(
    name: str, build: Callable[[], nn.Module], call: Callable, *shape: int, dim: int = 0
) -> None:
    class Call(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build()

        def forward(self, x):
            return call(self.inner, x)

    def loss(model, x):
        return uneven(model(x).movedim(dim, 0))

    def take(x, i):
        return x.narrow(dim, i, 1)

    CASES[name] = lambda: Case(Call(), torch.randn(*shape), loss, take, shape[dim])


attention(
    "mha_batch_first",
    lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    lambda m, x: m(x, x, x)[0],
    5,
    3,
    8,
)
attention(
    "mha_batch_second",
    lambda: nn.MultiheadAttention(8, 2),
    lambda m, x: m(x, x, x)[0],
    3,
    5,
    8,
    dim=1,
)
attention("mha_no_weights", lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x, need_weights=False)[0], 5, 3, 8)  # fmt: skip
attention("mha_bias_kv", lambda: nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True), lambda m, x: m(x, x, x)[0], 5, 3, 8)  # fmt: skip
attention("mha_own_kdim_vdim", lambda: nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True), lambda m, x: m(x, x[..., :5], x[..., 2:])[0], 5, 3, 8)  # fmt: skip
attention("mha_cross", lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x[:, :2], x[:, 1:], x[:, 1:])[0], 5, 4, 8)  # fmt: skip
attention("mha_causal_mask", lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x, attn_mask=torch.ones(4, 4).triu(1).bool())[0], 5, 4, 8)  # fmt: skip
attention("mha_mask_as_large_as_batch", lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x, attn_mask=torch.ones(4, 4).triu(1).bool())[0], 4, 4, 8)  # fmt: skip
attention("mha_key_padding", lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x, key_padding_mask=x[..., 0] > 1.5)[0], 5, 4, 8)  # fmt: skip
attention("encoder_layer", lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), lambda m, x: m(x), 5, 3, 8)  # fmt: skip
attention("encoder_layer_batch_second", lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0), lambda m, x: m(x), 3, 5, 8, dim=1)  # fmt: skip
attention("encoder_norm_first", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0, norm_first=True, batch_first=True), 2, enable_nested_tensor=False), lambda m, x: m(x), 5, 3, 8)  # fmt: skip
attention("decoder_layer", lambda: nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True), lambda m, x: m(x, x[:, :2].tanh()), 5, 3, 8)  # fmt: skip
attention("transformer", lambda: nn.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True), lambda m, x: m(x, x[:, :2]), 5, 3, 8)  # fmt: skip

# Recurrent networks
for _kind in (nn.RNN, nn.LSTM, nn.GRU):
    _name = _kind.__name__.lower()
    attention(_name, lambda k=_kind: k(4, 3), lambda m, x: m(x)[0], 6, 5, 4, dim=1)
    attention(f"{_name}_two_layers_bidirectional", lambda k=_kind: k(4, 3, 2, bidirectional=True, batch_first=True), lambda m, x: m(x)[0], 5, 6, 4)  # fmt: skip
attention(
    "lstm_last_state",
    lambda: nn.LSTM(4, 3, batch_first=True),
    lambda m, x: m(x)[1][0].transpose(0, 1),
    5,
    6,
    4,
)
attention(
    "lstm_projection",
    lambda: nn.LSTM(4, 5, batch_first=True, proj_size=2),
    lambda m, x: m(x)[0],
    5,
    6,
    4,
)


@case
def packed_lstm() -> Case:
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.cell, self.head = (
                nn.Embedding(7, 4),
                nn.LSTM(4, 3, batch_first=True),
                nn.Linear(3, 2),
            )

        def forward(self, x, lengths):
            packed = pack_padded_sequence(
                self.table(x), lengths, batch_first=True, enforce_sorted=False
            )
            out, _ = pad_packed_sequence(
                self.cell(packed)[0], batch_first=True, total_length=x.shape[1]
            )
            return self.head(out)

    def loss(model, batch):
        return model(*batch).flatten(1).square().sum(1)

    return Case(Packed(), (tokens(5, 6), torch.tensor([3, 6, 1, 4, 6])), loss, take_first, 5)


@case
def hand_written_cell() -> Case:
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(4, 3)

        def forward(self, x):
            state = x.new_zeros(x.shape[0], 3)
            for t in range(x.shape[1]):
                state = self.cell(x[:, t], state)
            return state

    return plain(Cell(), torch.randn(5, 4, 4), 5)


# How models are called
@case
def same_module_called_twice() -> Case:
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(self.layer(self.norm(self.layer(x).tanh())))

    return plain(Twice(), torch.randn(5, 3, 4), 5)


@case
def same_convolution_called_twice() -> Case:
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return self.conv(self.conv(x).tanh())

    return plain(Twice(), torch.randn(5, 3, 4, 4), 5)


@case
def two_forwards_in_one_loss() -> Case:
    def loss(model, x):
        return squares(model, x) + squares(model, x.flip(1)).sqrt()

    return plain(
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(5, 4), 5, loss
    )


@case
def submodules_called_in_the_loss() -> Case:
    model = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(3, 2)})

    def loss(m, x):
        return m["b"](m["a"](x).tanh()).square().sum(1)

    return plain(model, torch.randn(5, 4), 5, loss)


@case
def partly_frozen() -> Case:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    model[4].weight.requires_grad_(False)
    return plain(model, torch.randn(5, 4), 5)


@dataclasses.dataclass
class Output:
    logits: Tensor
    extra: dict[str, Tensor]


@case
def keyword_only_and_dataclass() -> Case:
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, *, x, mask):
            out = self.layer(x)
            return Output(out, {"masked": out * mask})

    def loss(model, batch):
        out = model(**batch)
        return out.logits.square().sum(1) + out.extra["masked"].sum(1)

    batch = {"x": torch.randn(5, 4), "mask": torch.rand(5, 1)}
    return Case(Keyword(), batch, loss, take_first, 5)


@case
def complex_frozen_features() -> Case:
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 2)

        def forward(self, x):
            with torch.no_grad():
                features = self.body(x).relu()
            return self.head(features)

    return plain(Frozen(), torch.randn(5, 4), 5)


@case
def padded_sequences() -> Case:
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x, mask):
            hidden = self.second(self.first(x).tanh()).tanh() * mask.unsqueeze(-1)
            return self.head(hidden.sum(1))

    mask = (torch.arange(12) < torch.tensor([3, 12, 1, 4, 0]).unsqueeze(1)).to(
        torch.get_default_dtype()
    )

    def loss(model, batch):
        return model(*batch).square().sum(1)

    mask[1, 6:] = 0
    return Case(Padded(), (torch.randn(5, 12, 4), mask), loss, take_first, 5)


@case
def mixture_of_experts() -> Case:
    class Experts(nn.Module):
        """Gathers tokens by data: rows have no fixed place."""

        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 2)
            self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

        def forward(self, x):
            flat = x.reshape(-1, 4)
            chance, choice = self.gate(flat).softmax(-1).max(-1)
            out = x.new_zeros(flat.shape[0], 3)
            for k, expert in enumerate(self.experts):
                mine = (choice == k).nonzero().flatten()
                out = out.index_add(0, mine, expert(flat[mine]) * chance[mine, None])
            return out.view(*x.shape[:-1], 3)

    return plain(Experts(), torch.randn(5, 3, 4), 5)


@case
def checkpointed() -> Case:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (
                nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)),
                nn.Linear(4, 2),
            )

        def forward(self, x):
            return self.b(checkpoint(self.a, x, use_reentrant=False))

    return plain(Checkpointed(), torch.randn(5, 4), 5)


@case
def custom_autograd_function() -> Case:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad * w, (grad * x).sum(0)

    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.w = nn.Linear(4, 3), nn.Parameter(torch.randn(3))

        def forward(self, x):
            return Scale.apply(self.layer(x), self.w)

    return plain(Custom(), torch.randn(5, 4), 5)


@case
def jit_scripted() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = torch.jit.trace(
            nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(5, 4)
        )
    return plain(model, torch.randn(5, 4), 5)


@case
def deep_equilibrium_weight_sharing() -> Case:
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.inject, self.core = nn.Linear(4, 5), nn.Linear(5, 5, bias=False)

        def forward(self, x):
            z = torch.zeros(x.shape[0], 5, dtype=x.dtype)
            for _ in range(4):
                z = (self.core(z) + self.inject(x)).tanh()
            return z

    return plain(Shared(), torch.randn(5, 4), 5)
