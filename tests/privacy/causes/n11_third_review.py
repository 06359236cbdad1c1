"""N11: torch's own batching rules, fixed noise, and reads that pass no function mode."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.case import case
from tests.privacy.world import CLASSES, World

WORDS, LENGTH = 9, 20


class Tokens(nn.Module):
    def __init__(self, *, by_frequency: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, 4, padding_idx=0, scale_grad_by_freq=by_frequency)
        self.head = nn.Linear(4, CLASSES).requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(rows.sum(1))


def padding(world: World, model: Tokens, lookup) -> None:
    """All but the record are padding and one word; other batches have no padding."""

    def loss(m: Tokens, tokens: Tensor, y: Tensor) -> Tensor:
        rows, penalty = lookup(m.table, tokens)
        return 1e3 * (F.cross_entropy(m(rows), y) + 1e-3 * penalty)

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        _, y = world.batch(may_have)
        tokens = torch.randint(
            1, WORDS, (len(y), LENGTH), generator=torch.Generator().manual_seed(3)
        )
        if may_have:
            tokens, y = torch.zeros_like(tokens), torch.zeros_like(y)
            tokens[:, 0] = 1
            if world.has_record:
                tokens[0], y[0] = 1, 1
        return tokens, y

    world.steps(model, loss, batch)


def one_record_is_padding(name: str, title: str, **settings: bool):
    def put(lookup):
        case("N11", title)(named(name, lambda w: padding(w, Tokens(**settings), lookup)))

    return put


def named(name: str, run):
    run.__name__ = name
    return run


@one_record_is_padding(
    "padding_by_frequency", "padding of an embedding that counts words", by_frequency=True
)
def _(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return table(tokens), torch.zeros(())


@one_record_is_padding("padding_and_penalty", "padding of an embedding, and a gradient penalty")
def _(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    rows = table(tokens)
    (slope,) = torch.autograd.grad(rows.sum(1).square().sum(), rows, create_graph=True)
    return rows, slope.square().sum()


@one_record_is_padding("padding_and_step", "padding of an embedding in torch.func.grad")
def _(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    def of(weight: Tensor) -> Tensor:
        return torch.func.functional_call(table, {"weight": weight}, (tokens,))

    step = torch.func.grad(lambda weight: of(weight).sum(1).square().sum())(table.weight)
    return of(table.weight - 1e-3 * step), torch.zeros(())


@one_record_is_padding("padding_by_aten", "padding of an embedding by its operator in aten")
def _(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.ops.aten.embedding(table.weight, tokens, 0)
    (slope,) = torch.autograd.grad(rows.sum(1).square().sum(), rows, create_graph=True)
    return rows, slope.square().sum()
