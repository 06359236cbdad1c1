"""Tables, clicks and recommendations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import RECORDS, Case, classes, cross_entropy, dense, numbers, padding, tokens

FIELDS, VALUES, WIDTH = 12, 100, 16


def fields() -> Tensor:
    """One category in each field; fields have categories of their own."""
    return torch.randint(VALUES, (RECORDS, FIELDS)) + VALUES * torch.arange(FIELDS)


def click(model: nn.Module, kinds: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(kinds, x), y)


def clicks(model: nn.Module) -> Case:
    return model, click, (fields(), numbers(8), classes(2).float())


class WideDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.EmbeddingBag(FIELDS * VALUES, 1, mode="sum")
        self.table = nn.EmbeddingBag(FIELDS * VALUES, 32, mode="mean")
        self.deep = dense(40, 128, 64, 1)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        return (self.wide(kinds) + self.deep(torch.cat([self.table(kinds), x], -1))).squeeze(-1)


def wide_and_deep() -> Case:
    """Wide & Deep (EmbeddingBag)"""
    return clicks(WideDeep())


class DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = (
            nn.Embedding(FIELDS * VALUES, 1),
            nn.Embedding(FIELDS * VALUES, WIDTH),
        )
        self.deep, self.bias = dense(FIELDS * WIDTH + 8, 128, 64, 1), nn.Parameter(torch.zeros(1))

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        rows = self.table(kinds)
        pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(-1) / 2
        deep = self.deep(torch.cat([rows.flatten(1), x], -1)).squeeze(-1)
        return self.linear(kinds).sum((1, 2)) + pairs + deep + self.bias


def deepfm() -> Case:
    """DeepFM"""
    return clicks(DeepFM())


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(VALUES, WIDTH, mode="sum") for _ in range(FIELDS)
        )
        self.bottom, self.top = dense(8, 64, WIDTH), dense(WIDTH + 78, 64, 1)
        self.register_buffer("pairs", torch.triu_indices(FIELDS + 1, FIELDS + 1, 1))

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        low = self.bottom(x)
        rows = [table(kinds[:, k, None] % VALUES) for k, table in enumerate(self.tables)]
        all_rows = torch.stack([low, *rows], 1)
        products = torch.bmm(all_rows, all_rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([low, products], -1)).squeeze(-1)


def dlrm() -> Case:
    """DLRM: twelve EmbeddingBags, inner products"""
    return clicks(DLRM())


class CrossNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = FIELDS * WIDTH + 8
        self.table = nn.Embedding(FIELDS * VALUES, WIDTH)
        self.crosses, self.last = (
            nn.ModuleList(nn.Linear(width, width) for _ in range(3)),
            nn.Linear(width, 1),
        )

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        start = y = torch.cat([self.table(kinds).flatten(1), x], -1)
        for cross in self.crosses:
            y = y + start * cross(y)
        return self.last(y).squeeze(-1)


def deep_and_cross() -> Case:
    """DCN-V2 (cross network)"""
    return clicks(CrossNetwork())


class AutoInt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(FIELDS * VALUES, WIDTH)
        self.mixes = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2)
        )
        self.last = nn.Linear(FIELDS * WIDTH + 8, 1)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        rows = self.table(kinds)
        for mix in self.mixes:
            rows = F.relu(rows + mix(rows, rows, rows)[0])
        return self.last(torch.cat([rows.flatten(1), x], -1)).squeeze(-1)


def autoint() -> Case:
    """AutoInt (attention across fields)"""
    return clicks(AutoInt())


class FTTransformer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(FIELDS * VALUES, width)
        self.scale, self.shift = (nn.Parameter(torch.randn(8, width)) for _ in range(2))
        self.token = nn.Parameter(torch.randn(width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(width, 1)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        columns = x.unsqueeze(-1) * self.scale + self.shift
        token = self.token.expand(len(x), 1, -1)
        return self.last(
            self.body(torch.cat([token, self.table(kinds), columns], 1))[:, 0]
        ).squeeze(-1)


def ft_transformer() -> Case:
    """FT-Transformer"""
    return clicks(FTTransformer())


class TabNet(nn.Module):
    """Steps that choose columns by a sparsemax, with ghost norm replaced by layer norm."""

    def __init__(self, inputs: int = 32, width: int = 32, steps: int = 3) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(inputs, 2 * width) for _ in range(steps))
        self.choose = nn.ModuleList(nn.Linear(width, inputs) for _ in range(steps))
        self.norms = nn.ModuleList(nn.LayerNorm(inputs) for _ in range(steps))
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden, prior, total = self.first(x), torch.ones_like(x), 0.0
        for step, choose, norm in zip(self.steps, self.choose, self.norms, strict=True):
            mask = sparsemax(norm(choose(hidden)) * prior)
            prior = prior * (1.5 - mask)
            hidden = F.glu(step(mask * x), -1)
            total = total + F.relu(hidden)
        return self.last(total)


def sparsemax(scores: Tensor) -> Tensor:
    """The nearest point of the simplex."""
    ordered = scores.sort(-1, descending=True).values
    counts = torch.arange(1, scores.shape[-1] + 1)
    inside = 1 + counts * ordered > ordered.cumsum(-1)
    size = inside.sum(-1, keepdim=True)
    level = (ordered.cumsum(-1).gather(-1, size - 1) - 1) / size
    return (scores - level).clamp(min=0)


def tabnet() -> Case:
    """TabNet (sparsemax)"""
    return TabNet(), cross_entropy, (numbers(32), classes(3))


class ObliviousTrees(nn.Module):
    """NODE: soft oblivious trees."""

    def __init__(self, inputs: int = 16, trees: int = 32, depth: int = 4, outputs: int = 3) -> None:
        super().__init__()
        self.choose = nn.Parameter(torch.randn(inputs, trees, depth))
        self.cut, self.heat = (
            nn.Parameter(torch.randn(trees, depth)),
            nn.Parameter(torch.zeros(trees, depth)),
        )
        self.leaves = nn.Parameter(torch.randn(trees, 2**depth, outputs))
        codes = torch.arange(2**depth)[:, None] >> torch.arange(depth) & 1
        self.register_buffer("codes", codes.float())

    def forward(self, x: Tensor) -> Tensor:
        columns = torch.einsum("bi,itd->btd", x, self.choose.softmax(0))
        right = torch.sigmoid((columns - self.cut) * torch.exp(-self.heat)).unsqueeze(2)
        ways = (right * self.codes + (1 - right) * (1 - self.codes)).prod(-1)
        return torch.einsum("btl,tlo->bo", ways, self.leaves)


def node_trees() -> Case:
    """NODE: soft oblivious trees"""
    return ObliviousTrees(), cross_entropy, (numbers(16), classes(3))


class Factors(nn.Module):
    def __init__(self, users: int = 1000, items: int = 1000) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, 32), nn.Embedding(items, 32)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = (self.users(user) * self.items(item)).sum(-1)
        return product + self.user_bias(user).squeeze(-1) + self.item_bias(item).squeeze(-1)


def matrix_factorization() -> Case:
    """Matrix factorization"""

    def loss(model: nn.Module, user: Tensor, item: Tensor, stars: Tensor) -> Tensor:
        return F.mse_loss(model(user, item), stars)

    return Factors(), loss, (classes(1000), classes(1000), numbers())


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.history = nn.EmbeddingBag(1000, 32, mode="mean", padding_idx=0)
        self.user, self.item = (
            dense(32, 64, 32),
            nn.Sequential(nn.Embedding(1000, 32), dense(32, 64, 32)),
        )

    def forward(self, history: Tensor, items: Tensor) -> Tensor:
        user = F.normalize(self.user(self.history(history)), dim=-1)
        return torch.einsum("bd,bkd->bk", user, F.normalize(self.item(items), dim=-1))


def two_towers() -> Case:
    """Two towers, sampled softmax with negatives drawn inside"""

    def loss(model: nn.Module, history: Tensor, item: Tensor) -> Tensor:
        negatives = torch.randint(1, 1000, (len(item), 8))
        scores = model(history, torch.cat([item[:, None], negatives], 1))
        return F.cross_entropy(scores / 0.1, torch.zeros_like(item))

    return TwoTowers(), loss, (tokens(12, 1000), classes(1000))


class NextItem(nn.Module):
    """SASRec."""

    def __init__(self, items: int = 500, width: int = 48) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(items, width, padding_idx=0), nn.Embedding(20, width)
        layer = nn.TransformerEncoderLayer(width, 2, 96, 0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, items: Tensor) -> Tensor:
        length = items.shape[1]
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.body(self.items(items) + self.places(torch.arange(length)), mask=ahead)


def next_item() -> Case:
    """SASRec: the next item against a random one"""

    def loss(model: nn.Module, items: Tensor, mask: Tensor) -> Tensor:
        hidden = model(items[:, :-1])
        right = (hidden * model.items(items[:, 1:])).sum(-1)
        wrong = (hidden * model.items(torch.randint_like(items[:, 1:], 1, 500))).sum(-1)
        weight = mask[:, 1:].float()
        return -(F.logsigmoid(right - wrong) * weight).sum() / weight.sum()

    return NextItem(), loss, (tokens(20, 500), padding(20))


MODELS = (
    wide_and_deep, deepfm, dlrm, deep_and_cross, autoint, ft_transformer, tabnet, node_trees,
    matrix_factorization, two_towers, next_item,
)  # fmt: skip
