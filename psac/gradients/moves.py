"""Operations that put rows where data say: `h[mask]`, a sort by length, routing to experts.

A plan says which rows are whose, from a batch that was studied.  For almost every operation that
depends on shapes alone, and holds for the next batch of the same shapes.  An operation with an
index tensor may send the rows of the next batch elsewhere, and no shape tells.  So those that can
move a row from one sample to another (a *move*) are asked again on every batch: each is run
backward by itself on rows that carry a number of their sample, and the numbers must arrive at rows
of the same sample.  That costs a few passes over one tensor for each move.

Guarantee: a batch whose moves do not keep to the layouts of the plan raises `CannotAssign` before
its gradients are used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import GraphExecGroup

from .errors import CannotAssign
from .graph import Edge, Graph
from .layout import Layout

# By a list of indices, one for each dimension, None for a dimension that is left alone.
BY_INDICES = frozenset(
    {"IndexBackward0", "UnsafeIndexBackward0", "IndexPutBackward0", "UnsafeIndexPutBackward0"}
)
# Along one dimension, or some.
ALONG_A_DIMENSION = frozenset(
    {
        "GatherBackward0",
        "IndexSelectBackward0",
        "IndexAddBackward0",
        "IndexCopyBackward0",
        "IndexReduceBackward0",
        "RollBackward0",
        "ScatterBackward0",
        "ScatterAddBackward0",
        "ScatterReduceBackward0",
        "SortBackward0",
        "TopkBackward0",
    }
)
ANYWHERE = frozenset(
    {
        "EmbeddingBackward0",
        "EmbeddingBagBackward0",
        "IndexPutImplBackward0",
        "MaskedScatterBackward0",
        "MaskedSelectBackward0",
        "PutBackward0",
        "SegmentReduceBackward0",
        "TakeBackward0",
    }
)
# Matrix products, which move rows where they sum over the samples: a permutation by a matrix. By
# name: for each input that is a matrix, the dimension that is summed over.
PRODUCTS = {
    "MmBackward0": {0: 1, 1: 0},
    "AddmmBackward0": {1: 1, 2: 0},
    "BmmBackward0": {0: 2, 1: 1},
    "BaddbmmBackward0": {1: 2, 2: 1},
    "MvBackward0": {0: 1, 1: 0},
}
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Move:
    """Data may decide which rows of `source` become which rows of `target`."""

    target: Edge
    source: Edge
    target_layout: Layout
    source_layout: Layout
    positions: tuple[int, int]  # entries for each sample, of the target and of the source


def may_move(graph: Graph, number: int, place: int, dim: int) -> bool:
    """Whether data decide what becomes of the rows of input `place`, which stand along `dim`."""
    name, node = graph.names[number], graph.nodes[number]
    if name in BY_INDICES:
        with GraphExecGroup():  # activation checkpointing recomputes what is read
            indices = node._saved_indices
        return dim < len(indices) and indices[dim] is not None
    if name in ALONG_A_DIMENSION:
        given = node._saved_dims if hasattr(node, "_saved_dims") else (node._saved_dim,)
        size = len(graph.shape(graph.children[number][place]))
        # torch shows negative numbers as unsigned ones
        along = [(d - 2**64 if d >= 2**63 else d) % max(size, 1) for d in given]
        return not along or dim in along
    if name in PRODUCTS:
        return PRODUCTS[name].get(place) == dim
    return name in ANYWHERE


def refuse_moves(graph: Graph, moves: Sequence[Move], n: int) -> None:
    """Raises where a row of this batch goes to another sample than its layout says."""
    for move in moves:
        sizes = [graph.shape(edge) for edge in (move.target, move.source)]
        layouts = move.target_layout, move.source_layout
        for size, layout, positions in zip(sizes, layouts, move.positions, strict=True):
            if size[layout.dim] != positions * n:
                raise CannotAssign(reason(graph, move))
        if not keeps_to_samples(graph, move, n):
            raise CannotAssign(reason(graph, move))


def keeps_to_samples(graph: Graph, move: Move, n: int) -> bool:
    meta: Any = graph.nodes[move.target[0]]._input_metadata[move.target[1]]
    like = torch.empty(0, dtype=meta.dtype, device=meta.device)
    ones = like.new_ones(()).expand(graph.shape(move.target))
    counts = pulled_back(graph, move, ones)
    if counts is None:
        return True
    half = meta.dtype in HALF
    scale = float(counts.abs().max()) if counts.numel() else 0.0
    for turn in range(3 if half else 1):  # in half precision many numbers are nearly the same
        numbers = numbers_of(n, turn).to(like)
        given = spread_out(numbers, move.target_layout, graph.shape(move.target))
        expected = counts * spread_out(numbers, move.source_layout, counts.shape)
        arrived = pulled_back(graph, move, given)
        if arrived is None:
            return False
        if not float((arrived - expected).abs().max()) <= (3e-2 if half else 1e-5) * scale:
            return False
    return True


def pulled_back(graph: Graph, move: Move, grad: Tensor) -> Tensor | None:
    """The gradient that the move by itself hands to its source."""
    (found,) = torch.autograd.grad(
        [graph.edge(move.target)],
        [graph.edge(move.source)],
        [grad],
        retain_graph=True,
        allow_unused=True,
    )
    return found.to_dense() if found is not None and found.is_sparse else found


@functools.lru_cache(maxsize=256)
def numbers_of(n: int, turn: int) -> Tensor:
    """One number for each sample, at random, so that no few of them add up to others."""
    return 1 + torch.rand(n, generator=torch.Generator().manual_seed(turn), dtype=torch.float64)


def spread_out(numbers: Tensor, layout: Layout, shape: Sequence[int]) -> Tensor:
    """A tensor of this shape that holds in every row the number of its sample."""
    outer, inner = layout.factors(shape[layout.dim], len(numbers))
    column = numbers.view(1, -1, 1).expand(outer, -1, inner).reshape(-1)
    return column.view(-1, *[1] * (len(shape) - layout.dim - 1)).expand(shape)


def reason(graph: Graph, move: Move) -> str:
    return f"{graph.names[move.target[0]]} moves rows to other samples than in the first batch"
