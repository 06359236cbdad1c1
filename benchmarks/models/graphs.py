"""Graphs, sets and points, padded to one size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import RECORDS, Case, classes, cross_entropy, dense, numbers, padding

NODES, FEATURES, WIDTH = 20, 16, 64


def graph() -> tuple[Tensor, Tensor, Tensor]:
    """Features, adjacency, and which nodes are there."""
    mask = padding(NODES)
    edges = torch.rand(RECORDS, NODES, NODES) < 0.2
    edges = (edges | edges.transpose(1, 2)) & mask[:, :, None] & mask[:, None, :]
    return numbers(NODES, FEATURES), edges.float(), mask.float()


class OverGraphs(nn.Module):
    """Layers over nodes, the mean of those that are there, a head."""

    def __init__(self, *layers: nn.Module, outputs: int = 3) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor, edges: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x, edges))
        weight = mask.unsqueeze(-1)
        return self.head((x * weight).sum(1) / weight.sum(1))


def classify(model: nn.Module, x: Tensor, edges: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x, edges, mask), y)


def over_graphs(layer: type[nn.Module]) -> Case:
    model = OverGraphs(layer(FEATURES, WIDTH), layer(WIDTH, WIDTH))
    return model, classify, (*graph(), classes(3))


class GCN(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges + torch.eye(edges.shape[-1])
        root = edges.sum(-1).rsqrt()
        return (root.unsqueeze(-1) * edges * root.unsqueeze(-2)) @ self.linear(x)


def gcn() -> Case:
    """GCN"""
    return over_graphs(GCN)


class GAT(nn.Module):
    def __init__(self, inputs: int, outputs: int, heads: int = 4) -> None:
        super().__init__()
        self.linear, self.heads = nn.Linear(inputs, outputs, bias=False), heads
        self.left, self.right = (
            nn.Parameter(torch.randn(heads, outputs // heads)) for _ in range(2)
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.linear(x).unflatten(-1, (self.heads, -1))
        scores = (h * self.left).sum(-1).unsqueeze(2) + (h * self.right).sum(-1).unsqueeze(1)
        edges = edges + torch.eye(edges.shape[-1])
        scores = F.leaky_relu(scores, 0.2).masked_fill(edges.unsqueeze(-1) == 0, float("-inf"))
        return torch.einsum("bijh,bjhd->bihd", scores.softmax(2), h).flatten(2)


def gat() -> Case:
    """GAT (attention on edges)"""
    return over_graphs(GAT)


class GIN(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.epsilon, self.mlp = nn.Parameter(torch.zeros(())), dense(inputs, outputs, outputs)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.mlp((1 + self.epsilon) * x + edges @ x)


def gin() -> Case:
    """GIN (a learned epsilon)"""
    return over_graphs(GIN)


class SAGE(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own, self.around = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        around = x.unsqueeze(1).masked_fill(edges.unsqueeze(-1) == 0, -1e4).amax(2)
        return F.normalize(self.own(x) + self.around(around.clamp(min=-10)), dim=-1)


def graphsage() -> Case:
    """GraphSAGE (the largest neighbour)"""
    return over_graphs(SAGE)


class Chebyshev(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, inputs, outputs) / inputs**0.5)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        root = (edges.sum(-1) + 1).rsqrt()
        scaled = -(root.unsqueeze(-1) * edges * root.unsqueeze(-2))
        terms = [x, scaled @ x]
        terms.append(2 * scaled @ terms[1] - terms[0])
        return torch.einsum("kbni,kio->bno", torch.stack(terms), self.weights)


def chebnet() -> Case:
    """ChebNet (einsum with weights)"""
    return over_graphs(Chebyshev)


class GatedGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.message = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.update, self.head = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, edges: Tensor, mask: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(3):
            message = edges @ self.message(x)
            x = self.update(message.flatten(0, 1), x.flatten(0, 1)).view_as(x)
        return self.head((x * mask.unsqueeze(-1)).sum(1))


def gated_graph() -> Case:
    """Gated graph network (GRUCell over nodes)"""
    return GatedGraph(), classify, (*graph(), classes(3))


class Energy(nn.Module):
    """SchNet: an energy of distances; forces are its slope."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.filter = nn.Embedding(10, 32), dense(16, 32, 32, activation=nn.SiLU)
        self.inner, self.out = nn.Linear(32, 32), dense(32, 32, 1, activation=nn.SiLU)
        self.register_buffer("centers", torch.linspace(0, 4, 16))

    def forward(self, kinds: Tensor, places: Tensor) -> Tensor:
        between = places.unsqueeze(2) - places.unsqueeze(1)
        distance = (between.square().sum(-1) + 1e-6).sqrt()
        waves = torch.exp(-4 * (distance.unsqueeze(-1) - self.centers) ** 2)
        x = self.kinds(kinds)
        x = x + torch.einsum("bijd,bjd->bid", self.filter(waves), self.inner(x))
        return self.out(x).sum((1, 2))


def schnet() -> Case:
    """SchNet with forces (autograd.grad inside)"""

    def loss(
        model: nn.Module, kinds: Tensor, places: Tensor, energy: Tensor, forces: Tensor
    ) -> Tensor:
        places = places.detach().requires_grad_()
        guess = model(kinds, places)
        (slope,) = torch.autograd.grad(guess.sum(), places, create_graph=True)
        return F.mse_loss(guess, energy) + F.mse_loss(-slope, forces)

    return Energy(), loss, (classes(10, 12), numbers(12, 3), numbers(), numbers(12, 3))


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = dense(FEATURES, 64, 64), dense(64, 64, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.all((self.each(x) * mask.unsqueeze(-1)).sum(1))


def of_sets(model: nn.Module) -> Case:
    def loss(model: nn.Module, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x, mask), y)

    return model, loss, (numbers(NODES, FEATURES), padding(NODES).float(), classes(3))


def deep_sets() -> Case:
    """DeepSets"""
    return of_sets(DeepSets())


class SetTransformer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.seeds = nn.Linear(FEATURES, width), nn.Parameter(torch.randn(8, width))
        self.induce, self.spread, self.pool = (
            nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x, hidden = self.enter(x), mask == 0
        seeds = self.seeds.expand(len(x), -1, -1)
        points = self.induce(seeds, x, x, key_padding_mask=hidden, need_weights=False)[0]
        x = x + self.spread(x, points, points, need_weights=False)[0]
        out = self.pool(seeds[:, :1], x, x, key_padding_mask=hidden, need_weights=False)[0]
        return self.head(out[:, 0])


def set_transformer() -> Case:
    """Set transformer (induced points)"""
    return of_sets(SetTransformer())


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(
            nn.Conv1d(3, 32, 1), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 9)
        )
        self.each = nn.Sequential(nn.Conv1d(3, 64, 1), nn.ReLU(), nn.Conv1d(64, 128, 1))
        self.head = nn.Linear(128, 10)

    def forward(self, points: Tensor) -> Tensor:
        turn = self.turn(points).view(-1, 3, 3) + torch.eye(3)
        return self.head(self.each(torch.bmm(turn, points)).amax(-1))


def pointnet() -> Case:
    """PointNet"""
    return PointNet(), cross_entropy, (numbers(3, 128), classes(10))


class EdgeConv(nn.Module):
    def __init__(self, near: int = 8) -> None:
        super().__init__()
        self.mlp, self.head, self.near = dense(6, 32, 64), nn.Linear(64, 10), near

    def forward(self, points: Tensor) -> Tensor:
        chosen = torch.cdist(points, points).topk(self.near, largest=False).indices
        around = points.gather(1, chosen.flatten(1).unsqueeze(-1).expand(-1, -1, 3))
        around = around.unflatten(1, chosen.shape[1:])
        own = points.unsqueeze(2).expand_as(around)
        return self.head(self.mlp(torch.cat([own, around - own], -1)).amax(2).mean(1))


def dgcnn() -> Case:
    """DGCNN (nearest neighbours by topk)"""
    return EdgeConv(), cross_entropy, (numbers(64, 3), classes(10))


MODELS = (
    gcn, gat, gin, graphsage, chebnet, gated_graph, schnet, deep_sets, set_transformer, pointnet,
    dgcnn,
)  # fmt: skip
