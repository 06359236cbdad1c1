"""Matrix products by hand: matmul and its relatives, einsum."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.gradients.table import raw

X, VECTOR = (5, 3, 4), (5, 4)

raw("matmul", lambda m, x: (x @ m.w).tanh() @ m.v, X, w=(4, 3), v=(3, 2))
raw("matmul_without_features", lambda m, x: x @ m.w @ m.v + m.b, X, w=(4, 0), v=(0, 2), b=(2,))
raw("matmul_method", lambda m, x: x.matmul(m.w).tanh(), X, w=(4, 2))
raw("matmul_function", lambda m, x: torch.matmul(x, m.w).tanh(), X, w=(4, 2))
raw("matmul_of_linalg", lambda m, x: torch.linalg.matmul(x, m.w), X, w=(4, 2))
raw("matmul_weight_first", lambda m, x: (m.w @ x.transpose(1, 2)).tanh(), X, w=(2, 4))
raw("matmul_features_alone", lambda m, x: x[0] @ m.w, VECTOR, w=(4, 3))
raw("matmul_weight_first_features_alone", lambda m, x: m.w @ x[0], VECTOR, w=(3, 4))
raw("matmul_with_a_vector", lambda m, x: (x @ m.w).tanh(), X, w=(4,))
raw("matmul_vector_first", lambda m, x: m.w @ x[0], X, w=(3,))
raw("matmul_of_groups", lambda m, x: (x.transpose(0, 1) @ m.w).tanh(), X, w=(3, 4, 2))
raw("matmul_of_groups_and_positions", lambda m, x: x.unsqueeze(2) @ m.w, X, w=(3, 4, 2))
raw("matmul_broadcast", lambda m, x: x @ m.w, X, w=(2, 1, 4, 2))
raw("mm", lambda m, x: torch.mm(x, m.w).mm(m.v), VECTOR, w=(4, 3), v=(3, 2))
raw("mm_weight_first", lambda m, x: torch.mm(m.w, x[0].t()), X, w=(2, 4))
raw("bmm", lambda m, x: torch.bmm(x.transpose(0, 1), m.w).bmm(m.v), X, w=(3, 4, 2), v=(3, 2, 2))
raw("bmm_expanded", lambda m, x: torch.bmm(x, m.w.expand(len(x), -1, -1)), X, w=(1, 4, 2))
raw("bmm_repeated", lambda m, x: torch.bmm(x, m.w.repeat(len(x), 1, 1)), X, w=(1, 4, 2))
raw("mv", lambda m, x: torch.mv(m.w, x[0]).tanh() + m.v.mv(x[0]), VECTOR, w=(3, 4), v=(3, 4))
raw("mv_of_the_record", lambda m, x: torch.mv(x[0], m.w), X, w=(4,))
raw("dot", lambda m, x: torch.dot(x[0], m.w).square(), VECTOR, w=(4,))
raw("outer", lambda m, x: torch.outer(x[0], m.w).tanh(), VECTOR, w=(3,))
raw("inner", lambda m, x: torch.inner(x, m.w), VECTOR, w=(3, 4))
raw("kron", lambda m, x: torch.kron(x, m.w), VECTOR, w=(2, 3))
raw("tensordot", lambda m, x: torch.tensordot(x, m.w, ([1, 2], [1, 0])), X, w=(4, 3, 2))
raw("multi_dot", lambda m, x: torch.linalg.multi_dot([x, m.w, m.v]), VECTOR, w=(4, 2), v=(2, 3))
raw("addmm", lambda m, x: torch.addmm(m.b, x, m.w).tanh(), VECTOR, w=(4, 2), b=(2,))
raw("addmm_method", lambda m, x: m.b.addmm(x, m.w).tanh(), VECTOR, w=(4, 2), b=(2,))
raw("addmm_of_a_matrix", lambda m, x: torch.addmm(m.b, x[0], m.w), X, w=(4, 2), b=(3, 2))
raw("addmm_to_the_record", lambda m, x: torch.addmm(x[0], m.v, m.w), X, v=(3, 2), w=(2, 4))
raw(
    "addmm_scaled",
    lambda m, x: torch.addmm(m.b, x, m.w, beta=0.5, alpha=2.0),
    VECTOR,
    w=(4, 2),
    b=(2,),
)
raw("addmv", lambda m, x: torch.addmv(m.b, m.w, x[0]), VECTOR, w=(3, 4), b=(3,))
raw("addbmm", lambda m, x: torch.addbmm(m.b, x.transpose(0, 1), m.w), X, w=(3, 4, 2), b=(2,))
raw("baddbmm", lambda m, x: torch.baddbmm(m.b, x.transpose(0, 1), m.w), X, w=(3, 4, 2), b=(3, 1, 2))
raw("addr", lambda m, x: torch.addr(m.w, x[0], m.b), VECTOR, w=(4, 3), b=(3,))

EINSUMS = {
    "plain": ("bti,io->bto", (4, 2)),
    "without_arrow": ("bti,io", (4, 2)),
    "ellipsis": ("...i,io->...o", (4, 2)),
    "two_ellipses": ("...ti,...io->...to", (1, 4, 2)),
    "weight_turned": ("bti,oi->bto", (2, 4)),
    "heads": ("bti,hio->bhto", (2, 4, 3)),
    "per_group": ("bgi,gio->bgo", (3, 4, 2)),
    "two_axes_summed": ("bti,tio->bo", (3, 4, 2)),
    "vector": ("bti,i->bt", (4,)),
    "elementwise": ("bti,ti->bti", (3, 4)),
    "outer": ("bti,xy->btixy", (2, 2)),
    "number": ("bti,->bti", ()),
    "positions_summed": ("bti,io->bo", (4, 2)),
    "broadcast": ("bti,tio->bto", (1, 4, 2)),
    "diagonal": ("bti,iio->bto", (4, 4, 2)),
}
for _name, (_equation, _shape) in EINSUMS.items():
    raw(f"einsum_{_name}", lambda m, x, e=_equation: torch.einsum(e, x, m.w).tanh(), X, w=_shape)
raw("einsum_weight_first", lambda m, x: torch.einsum("io,bti->bto", m.w, x), X, w=(4, 2))
raw(
    "einsum_of_three",
    lambda m, x: torch.einsum("bti,io,od->btd", x, m.w, m.v),
    X,
    w=(4, 2),
    v=(2, 3),
)
raw("einsum_of_pairs", lambda m, x: torch.einsum("bti,bsj,ij->bts", x, x, m.w), X, w=(4, 4))
raw("einsum_sublists", lambda m, x: torch.einsum(x, [0, 1, 2], m.w, [2, 3], [0, 1, 3]), X, w=(4, 2))


def routed(m, x, weight, experts=3, bias=None):
    """Rows sorted by the expert that they choose; the last may be one that there is not.

    torch has no `_grouped_mm` of float64.
    """
    chosen, order = (3 * x[0, :, 0]).abs().long().clamp(max=experts).sort()
    rows, counts = (
        x[0][order],
        torch.histc(chosen.float(), 3, 0, 2) + 0 * chosen.float().histc(3, 0, 2),
    )
    if x.dtype is torch.float64:
        y = torch.einsum("pi,eio,pe->po", rows, weight, F.one_hot(chosen, 4)[:, :3].to(x))
    else:
        y = torch._grouped_mm(rows, weight, offs=counts.cumsum(0, dtype=torch.int32))
    if bias is not None:
        y.add_(bias)
    return torch.where((chosen < 3).unsqueeze(-1), y, 0)


ROUTED = (5, 9, 4)
raw("routed_rows", lambda m, x: routed(m, x, m.w), ROUTED, w=(3, 4, 8))
raw("routed_rows_turned", lambda m, x: routed(m, x, m.w.mT), ROUTED, w=(3, 8, 4))
raw(
    "routed_rows_of_a_layer",
    lambda m, x: routed(m, (x @ m.v).tanh(), m.w, 2).tanh() @ m.u,
    ROUTED,
    v=(4, 4),
    w=(3, 4, 8),
    u=(8, 2),
)
raw(
    "routed_rows_with_a_bias_in_place",
    lambda m, x: routed(m, (x @ m.v).tanh(), m.w, 2, bias=1.0).sigmoid(),
    ROUTED,
    v=(4, 4),
    w=(3, 4, 8),
)
raw(
    "routed_twice",
    lambda m, x: routed(m, routed(m, x, m.w, 2).tanh()[None], m.w, 2),
    ROUTED,
    w=(3, 4, 4),
)
