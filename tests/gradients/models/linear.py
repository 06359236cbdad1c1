"""Linear and bilinear layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.table import Call, rows


def two(first: int, middle: int, last: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(first, middle), nn.Tanh(), nn.Linear(middle, last))


rows("linear", lambda: nn.Linear(4, 3), (5, 4))
rows("linear_without_bias", lambda: nn.Linear(4, 3, bias=False), (5, 4))
rows("linear_on_features_alone", lambda: two(4, 3, 2), (5, 4), lambda m, x: m(x[0]))
for _shape in [(5, 6, 4), (5, 6, 2, 4), (5, 2, 3, 2, 4)]:
    rows(f"linear_on_{len(_shape)}d", lambda: two(4, 3, 2), _shape)
rows("linear_long_sequence", lambda: two(3, 40, 50), (3, 9, 3))
rows("linear_very_long_sequence", lambda: two(3, 4, 3), (3, 200, 3))
rows("linear_wide_gram", lambda: two(3, 400, 300), (3, 65, 3))
rows("as_many_positions_as_samples", lambda: two(4, 4, 4), (4, 4, 4))
rows("batch_of_two", lambda: two(4, 3, 2), (2, 3, 4))
rows("batch_of_one", lambda: two(4, 3, 2), (1, 3, 4))
rows("bilinear", lambda: nn.Bilinear(4, 4, 3), (5, 4), lambda m, x: m(x, x.tanh()))
rows(
    "bilinear_of_positions",
    lambda: Call(
        lambda m, x: m.product(m.first(x), x), first=nn.Linear(4, 3), product=nn.Bilinear(3, 4, 5)
    ),
    (5, 6, 4),
)
rows(
    "bilinear_without_bias",
    lambda: nn.Bilinear(4, 4, 3, bias=False),
    (5, 4),
    lambda m, x: m(x[0], x[0].tanh()),
)


class Constant(nn.Module):
    """An output that depends on a parameter, beside a layer that may have nothing to do."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.offset = layer, nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sum(1)[:, :2] + self.offset


rows("linear_on_no_positions", lambda: Constant(nn.Linear(4, 3)), (5, 0, 4))


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
    (3, 12, 8),
)


class Padded(nn.Module):
    """Most positions count for nothing, for each record others."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 96), nn.Tanh(), Projections(), nn.Linear(96, 80))
        self.tied = nn.Linear(80, 80)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return (self.tied(hidden) + self.tied(hidden.tanh())) * (x[..., :1] > 0.7)


rows("padded_positions", Padded, (5, 24, 8))


class TwoMasks(nn.Module):
    """Two layers read one tensor; for each, as many positions count, but others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 48), nn.Linear(64, 48)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).unsqueeze(1)
        return self.first(x) * (places < 6) + self.second(x) * (places >= x.shape[1] - 6)


rows("other_positions_for_each_layer", TwoMasks, (5, 24, 64))
