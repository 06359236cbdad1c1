"""Parameters without a layer, used in every other way than a matrix product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.table import Raw, raw, rows

X, VECTOR = (5, 3, 4), (5, 4)

# Added, multiplied, compared
raw("times", lambda m, x: x * m.w, X, w=(4,))
raw("divided_by", lambda m, x: (x @ m.w) / (m.d.square() + 1) - m.s, X, w=(4, 3), d=(3,), s=(3,))
raw("parameter_over_record", lambda m, x: m.w / (x.square() + 1), X, w=(4,))
raw("power_of_record", lambda m, x: (x.abs() + 0.1) ** m.p @ m.w, VECTOR, p=(4,), w=(4, 2))
raw("power_of_parameter", lambda m, x: (m.p.abs() + 0.1) ** x, X, p=(4,))
raw("where", lambda m, x: torch.where(x > 0, x @ m.w, m.fill), VECTOR, w=(4, 4), fill=(4,))
raw("maximum", lambda m, x: torch.maximum(x, m.w).clamp(max=m.top.abs()), X, w=(4,), top=(4,))
raw("lerp", lambda m, x: torch.lerp(x, x.sin(), m.w), X, w=(4,))
raw("addcmul", lambda m, x: torch.addcmul(x, x, m.w).addcdiv(m.v, x.exp()), X, w=(4,), v=(4,))
raw("cdist", lambda m, x: torch.cdist(x @ m.w, m.centres), X, w=(4, 2), centres=(6, 2))
raw("cumulative", lambda m, x: torch.cumsum(x * m.a, 1), X, a=(4,))
raw(
    "scatter_add",
    lambda m, x: x.new_zeros(4, 4).scatter_add(0, x[0].argsort(1), x[0] * m.w),
    X,
    w=(4,),
)
raw("solve", lambda m, x: torch.linalg.solve(m.w + 3 * torch.eye(4), x.mT), X, w=(4, 4))
raw("layer_scale", lambda m, x: x + m.scale * (x @ m.w).tanh(), X, scale=(4,), w=(4, 4))
raw(
    "temperature_and_shift",
    lambda m, x: (x @ m.w) * m.log_t.exp() + m.shift,
    VECTOR,
    w=(4, 3),
    log_t=(),
    shift=(),
)
raw(
    "softmax_of_parameter",
    lambda m, x: (x.unsqueeze(-1) * m.a.softmax(0)).sum(-1) @ m.w,
    VECTOR,
    a=(3,),
    w=(4, 2),
)


def in_place(m: nn.Module, x: Tensor) -> Tensor:
    out = x * 2
    out += m.w
    out *= m.v
    out[:, 0] = m.w * out[:, 1].clone()
    return out.add_(m.v)


raw("written_in_place", in_place, X, w=(4,), v=(4,))


def into_zeros(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, 0] = m.w
    out[:, 1:] = x[:, 1:] * m.w
    return out


raw("written_into_zeros", into_zeros, X, w=(4,))


def into_shared_zeros(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(1, 3, 4)
    out[:, 1] = x[:, 1] * m.w
    return out


raw("written_into_shared_zeros", into_shared_zeros, X, w=(4,))

# Beside records
raw(
    "class_token_by_expand",
    lambda m, x: (torch.cat([m.token.expand(len(x), -1, -1), x], 1) @ m.w).tanh(),
    X,
    token=(1, 1, 4),
    w=(4, 3),
)
raw(
    "class_token_by_repeat",
    lambda m, x: torch.cat([m.token.repeat(len(x), 1, 1), x @ m.w], 1),
    X,
    token=(1, 1, 4),
    w=(4, 4),
)
raw("position_table", lambda m, x: ((x + m.t[: x.shape[1]]) @ m.w).tanh(), X, t=(6, 4), w=(4, 2))
raw("stacked_with_records", lambda m, x: torch.stack([x[0, 0], m.w]).softmax(0), X, w=(4,))
raw("padded_by_a_parameter", lambda m, x: torch.hstack([x[0], m.w.view(3, 2)]).tanh(), X, w=(6,))

# One parameter, several uses
raw(
    "queries_of_a_record",
    lambda m, x: (
        nn.functional.linear(m.q.expand(len(x), -1, -1), m.v).tanh() @ x.mT
        + nn.functional.layer_norm(m.r[None], (4,), m.w) @ x.mT
    ),
    (5, 3, 4),
    q=(2, 4),
    r=(2, 4),
    v=(4, 4),
    w=(4,),
)
raw(
    "slices_used_twice",
    lambda m, x: (x @ m.w.chunk(2)[0]).tanh() @ m.w.split([4, 4])[1] + x @ m.w[:4] @ m.w[4:],
    (5, 3, 4),
    w=(8, 4),
)
raw(
    "halves_used_twice",
    lambda m, x: (
        sum((x @ part).tanh() @ other for part, other in [m.w.chunk(2)])
        + (x @ m.w.chunk(2)[0]).exp() @ m.w.chunk(2)[1]
    ),
    (5, 3, 4),
    w=(8, 4),
)
raw(
    "overlapping_slices",
    lambda m, x: (x @ m.w[:4]).tanh() @ m.w[2:6] + x @ m.w[:4].mT,
    (5, 3, 4),
    w=(8, 4),
)
raw("weight_used_twice", lambda m, x: (x @ m.w).tanh() @ m.w, VECTOR, w=(4, 4))
raw("weight_used_turned", lambda m, x: (x @ m.w).tanh() @ m.w.t(), X, w=(4, 6))
raw("weight_used_thrice", lambda m, x: (x @ m.w).tanh() @ m.w * m.w[0] + m.w[1], X, w=(4, 4))
raw("weight_slices_overlap", lambda m, x: x @ m.w[:, :3] + x @ m.w[:, 1:4], VECTOR, w=(4, 5))
raw("weight_slices_apart", lambda m, x: x @ m.w[:, :2] + x @ m.w[:, 2:], X, w=(4, 4))
raw("weight_and_its_slice", lambda m, x: x @ m.w + (x @ m.w[:, :1]).tanh(), X, w=(4, 4))
raw("chunks", lambda m, x: torch.cat([x @ w for w in m.w.chunk(3, 1)], -1).tanh(), X, w=(4, 6))
raw("regulariser", lambda m, x: (x @ m.w).tanh() + m.w.square().sum(), X, w=(4, 2))
raw(
    "regulariser_of_another",
    lambda m, x: (x @ m.w).tanh() + m.v.square().sum(),
    X,
    w=(4, 2),
    v=(3,),
)
raw("no_record_at_all", lambda m, x: m.w.square(), X, w=(4,))
raw("unused_parameter", lambda m, x: x @ m.w, VECTOR, w=(4, 2), nothing=(3,))
raw("bias_on_everything", lambda m, x: F.linear(x, m.w, m.b) * m.b, X, w=(2, 4), b=(2,))

# Computed from parameters
raw("normalised_weight", lambda m, x: x @ F.normalize(m.w, dim=0), VECTOR, w=(4, 3))
raw("divided_by_its_norm", lambda m, x: x @ m.w / m.w.norm(), X, w=(4, 3))
raw("masked_by_bool", lambda m, x: x @ (m.w * (torch.ones(4, 3).tril() > 0)), VECTOR, w=(4, 3))
raw("masked_weight", lambda m, x: x @ (m.w * torch.ones(4, 3).tril()), VECTOR, w=(4, 3))
raw("diagonal_weight", lambda m, x: x @ torch.diag(m.w), X, w=(4,))
raw("inverted_weight", lambda m, x: x @ torch.linalg.inv(m.w + 3 * torch.eye(4)), X, w=(4, 4))
raw("exponential_of_weight", lambda m, x: x @ torch.linalg.matrix_exp(m.w), X, w=(4, 4))
raw("low_rank", lambda m, x: x @ (m.w + m.a @ m.b), X, w=(4, 3), a=(4, 1), b=(1, 3))
raw("viewed_weight", lambda m, x: F.linear(x, m.w.view(2, 4)), X, w=(8,))
raw("strided_weight", lambda m, x: F.linear(x.view(1, 2, 6).mT, m.w[:, ::2]), X, w=(2, 4))
raw(
    "convolution_by_hand",
    lambda m, x: F.conv1d(x, m.w.flip(-1), m.b, padding=1),
    X,
    w=(2, 3, 3),
    b=(2,),
)
raw(
    "filter_of_the_record",
    lambda m, x: F.conv1d(m.signal, (x[0] @ m.w).view(1, 3, 3)),
    X,
    signal=(1, 3, 6),
    w=(4, 3),
)

# Shapes that may be mistaken
raw("merged_rows", lambda m, x: F.linear(x.reshape(-1, 4), m.w).tanh().reshape(1, -1), X, w=(2, 4))
raw(
    "merged_rows_batch_second",
    lambda m, x: F.linear(x.transpose(0, 1).reshape(-1, 4), m.w, m.b).tanh() @ m.v,
    X,
    w=(2, 4),
    b=(2,),
    v=(2, 2),
)
raw("as_many_positions_as_records", lambda m, x: (x @ m.w).tanh() @ m.w, (4, 4, 4), w=(4, 4))

# Complex numbers
raw("fourier", lambda m, x: torch.fft.rfft(x @ m.w).abs(), VECTOR, w=(4, 6))
raw(
    "complex_filter",
    lambda m, x: torch.fft.irfft(torch.fft.rfft(x @ m.w) * torch.view_as_complex(m.f), n=6),
    VECTOR,
    w=(4, 6),
    f=(4, 2),
)


def complex_dtype() -> torch.dtype:
    return torch.promote_types(torch.get_default_dtype(), torch.complex64)


class Complex(Raw):
    def __init__(self, function, shapes) -> None:
        super().__init__(function, {})
        for name, shape in shapes.items():
            value = torch.randn(shape, dtype=complex_dtype())
            self.register_parameter(name, nn.Parameter(value))


for _name, _function in {
    "complex_parameter": lambda m, x: x.to(m.w.dtype) @ m.w,
    "complex_parameter_times": lambda m, x: torch.fft.fft(x) * m.w[:, 0],
    "complex_parameter_slices": lambda m, x: (
        x.to(m.w.dtype) @ m.w[:, :1] + x.to(m.w.dtype) @ m.w[:, 1:]
    ),
}.items():
    rows(_name, lambda f=_function: Complex(f, {"w": (4, 3)}), X)
rows(
    "complex_linear",
    lambda: nn.Linear(4, 3, dtype=complex_dtype()),
    X,
    lambda m, x: m(x.to(complex_dtype())),
)
