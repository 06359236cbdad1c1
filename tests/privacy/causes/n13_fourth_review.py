"""N13: operations of other ranks than usual, reads of many records, and what ends a step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from tests.privacy.case import case
from tests.privacy.world import FEATURES, World, cross_entropy, network

POSITIONS = 5


# Operations of another rank than in the step before.  What was compared with plain autograd in the
# first step tells nothing of them.
class Attending(nn.Module):
    """Learned queries over the positions of a record, whose keys have as many axes at first."""

    def __init__(self, attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.queries = nn.Parameter(torch.randn(1, 1, 3, FEATURES))
        self.head, self.attend, self.calls = nn.Linear(FEATURES, 3), attend, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        keys = x.unsqueeze(1)
        attend = self.attend if self.calls > 2 else F.scaled_dot_product_attention
        return self.head(attend(self.queries, keys, keys).mean((0, 1, 2)))


def attended(world: World, attend) -> None:
    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        positions = world.inputs(POSITIONS, FEATURES, may_have=may_have)
        return positions, world.labels(may_have=may_have)

    world.steps(Attending(attend), lambda m, x, y: F.cross_entropy(m(x), y[0]), batch)


@case("N13", "attention whose keys have an axis less than its queries")
def keys_of_fewer_axes(world: World) -> None:
    attended(world, lambda q, k, v: F.scaled_dot_product_attention(q, k[:, 0], v[:, 0]))


@case("N13", "attention whose queries have an axis less than its keys")
def queries_of_fewer_axes(world: World) -> None:
    attended(world, lambda q, k, v: F.scaled_dot_product_attention(q[:, 0], k, v))


@case("N13", "attention whose values have an axis less than its keys")
def values_of_fewer_axes(world: World) -> None:
    attended(world, lambda q, k, v: F.scaled_dot_product_attention(q, k, v[:, 0]))
