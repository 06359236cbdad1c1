"""Parameters behind computations that cannot be taken apart, and slices of packed parameters.

same parameter, every use holds it whole   joined in the parameter's own space, cross terms
                                           included
slices that do not overlap                 squared norms add; uses of the same slice are joined
anything else (a softmax of parameters, ...)  per-sample gradients of the sources, pulled back to
                                           the parameters
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from psac.gradients.contributions.base import Budget, Contribution, Dense, Outer, square_sum
from psac.gradients.contributions.graph import ACCUMULATE, Edge, Graph
from psac.gradients.contributions.joined import joined
from psac.gradients.contributions.memory import TEMPORARY_BYTES, slices
from psac.gradients.contributions.ragged import Ragged
from psac.gradients.contributions.single import Single
from psac.gradients.contributions.weights import Weights
from psac.gradients.precision import HALF, pieces, wide

# Backward nodes that move, copy or cast the entries of one tensor and change no norm.
ISOMETRIES = frozenset(
    {
        "TBackward0",
        "TransposeBackward0",
        "PermuteBackward0",
        "ViewBackward0",
        "UnsafeViewBackward0",
        "ReshapeAliasBackward0",
        "UnsqueezeBackward0",
        "SqueezeBackward0",
        "SqueezeBackward1",
        "SqueezeBackward2",
        "AliasBackward0",
        "CloneBackward0",
        "ToCopyBackward0",
        "SliceBackward0",
        "SelectBackward0",
        "SplitBackward0",
        "SplitWithSizesBackward0",
        "ChunkBackward0",
        "UnbindBackward0",
        "NarrowBackward0",
    }
)
# Rows that are kept whatever the budget: slices of them take as much, and autograd formed them.
KEPT_BYTES = TEMPORARY_BYTES
# Of such a node, what tells where its entries go.
SETTINGS = (
    *("_saved_dim", "_saved_dim0", "_saved_dim1", "_saved_dims", "_saved_index", "_saved_start"),
    *("_saved_end", "_saved_step", "_saved_split_size", "_saved_split_sizes"),
    "_saved_self_sym_sizes",
)
TRANSPOSES = frozenset({"TBackward0", "TransposeBackward0"})
WHOLE = TRANSPOSES | {"ToCopyBackward0", "AliasBackward0", "CloneBackward0"}


def way(graph: Graph, edge: Edge) -> str:
    """How the entries of a source are those of its parameter."""
    passed, number = [], edge[0]
    while number not in graph.parameters:
        children = [c for c in graph.children[number] if c[0] >= 0]
        name = graph.names[number]
        if len(children) != 1 or not (name in ISOMETRIES or is_no_expansion(graph, number)):
            return "general"
        passed.append(graph.names[number])
        number = children[0][0]
    if all(name in WHOLE for name in passed):
        turns = sum(name in TRANSPOSES for name in passed)
        if turns == 0:
            return "itself"
        if len(graph.shape(edge)) == 2:
            return "transposed" if turns % 2 else "itself"
    return "isometric"


def is_no_expansion(graph: Graph, number: int) -> bool:
    """An `expand` of axes of length one, for a batch of one record."""
    sizes = (math.prod(graph.shape(edge)) for edge in ((number, 0), graph.children[number][0]))
    return graph.names[number] == "ExpandBackward0" and len(set(sizes)) == 1


def entries(graph: Graph, edge: Edge) -> object:
    """The same for sources that are the same entries of a parameter, in the same order."""
    if way(graph, edge) == "general":
        return edge
    passed: list[object] = [graph.shape(edge)]
    while edge[0] not in graph.parameters:
        node = graph.nodes[edge[0]]
        settings = [getattr(node, name, None) for name in SETTINGS]
        passed.append((graph.names[edge[0]], edge[1], *settings))
        edge = next(child for child in graph.children[edge[0]] if child[0] >= 0)
    return edge, tuple(passed)


class Joint:
    """One cluster in one backward: the contributions of all its uses."""

    def __init__(
        self,
        graph: Graph,
        parameters: Sequence[str],
        uses: Mapping[Edge, list[Contribution]],
        num_samples: int,
    ):
        self.graph, self.num_samples = graph, num_samples
        self.ways = {edge: way(graph, edge) for edge in uses}
        self.leaves = {name: graph.leaves[name] for name in parameters}
        self.whole = len(self.leaves) == 1 and all(
            way in ("itself", "transposed") for way in self.ways.values()
        )
        self.parts: dict[Edge, Contribution]
        if self.whole:
            (number,) = self.leaves.values()
            turned = [
                in_parameter_space(part, self.ways[edge])
                for edge, parts in uses.items()
                for part in parts
            ]
            self.parts = {(number, 0): joined(turned)}
        else:
            alike: dict[object, tuple[Edge, list[Contribution]]] = {}
            for edge, parts in uses.items():
                key = entries(graph, edge) if len(uses) > 1 else edge
                alike.setdefault(key, (edge, []))[1].extend(parts)
            self.parts = {edge: joined(parts) for edge, parts in alike.values()}
        self.kept: dict[str, Dense] = {}  # per-sample gradients of the parameters
        self.method = ""

    def norms_squared(self, budget: Budget) -> Tensor:
        if self.whole or self._slices_do_not_overlap():
            norms = [part.norms_squared(budget) for part in self.parts.values()]
            self.method = " + ".join(dict.fromkeys(part.method for part in self.parts.values()))
            return norms[0] if len(norms) == 1 else torch.stack(norms).sum(0)
        self.method = "pulled back"
        shapes = [self.graph.shape((leaf, 0)) for leaf in self.leaves.values()]
        size = 4 * self.num_samples * sum(map(math.prod, shapes))
        replaced = sum(nbytes_of(part) for part in self.parts.values())
        if self.derived and (size <= KEPT_BYTES or budget.allows(size, replaced)):
            rows = [self.rows(s) for s in self.slices()]
            self.kept = {name: Dense(torch.cat([r[name] for r in rows])) for name in rows[0]}
            self.parts = {}
        norms = []
        for s in self.slices():
            rows = self.rows(s).values()
            norms.append(torch.stack([square_sum(value) for value in rows]).sum(0))
        return torch.cat(norms)

    def _slices_do_not_overlap(self) -> bool:
        if self.derived:
            return False
        if len(self.parts) == 1:
            return True
        covered = {
            name: torch.zeros(self.graph.shape((leaf, 0))) for name, leaf in self.leaves.items()
        }
        for edge in self.parts:
            ones = torch.ones(self.graph.shape(edge))
            for name, grad in self._pull({edge: ones}).items():
                covered[name] += grad.abs().cpu().float()
        return all(bool((grad <= 1).all()) for grad in covered.values())

    @property
    def derived(self) -> bool:
        """Whether parameters are behind a computation, not only behind slices and casts."""
        return any(way == "general" for way in self.ways.values())

    def slices(self) -> list[slice]:
        return slices(self.num_samples, self.bytes_per_sample())

    def bytes_per_sample(self) -> int:
        """Of its gradients, or of the widest place on their way, several times."""
        edges = [(leaf, 0) for leaf in self.leaves.values()] + list(self.parts)
        ends = sum(math.prod(self.graph.shape(edge)) for edge in edges)
        widest = max(math.prod(self.graph.shape(edge)) for edge in self._below(edges))
        return 8 * max(ends, 4 * widest)

    def rows(self, samples: slice | Tensor) -> dict[str, Tensor]:
        """Per-sample gradients of the cluster's parameters."""
        if self.kept:
            return {name: part.dense(samples) for name, part in self.kept.items()}
        if self.whole:
            return {
                name: part.dense(samples)
                for name, part in zip(self.leaves, self.parts.values(), strict=True)
            }
        return self._pull({edge: part.dense(samples) for edge, part in self.parts.items()}, True)

    def weighted_sums(self, weights: Weights) -> dict[str, Tensor]:
        if self.whole:
            (name,), (part,) = self.leaves, self.parts.values()
            return {name: part.weighted_sum(weights)}
        if self.kept:
            return {name: part.weighted_sum(weights) for name, part in self.kept.items()}
        if self.derived:
            return self.sums_of_rows(weights)
        return self._pull({edge: part.weighted_sum(weights) for edge, part in self.parts.items()})

    def sums_of_rows(self, weights: Weights) -> dict[str, Tensor]:
        """From the same rows as their norms.

        To pull a sum back instead would round once more, by as much as the computation cancels.
        """
        total: dict[str, Tensor] = {}
        for s in self.slices():
            part = Weights(weights.values[s])
            for name, value in self.rows(s).items():
                added = Dense(value).weighted_sum(part)
                total[name] = total[name] + added if name in total else added
        return total

    def _pull(self, values: Mapping[Edge, Tensor], each: bool = False) -> dict[str, Tensor]:
        """From gradients of the sources to gradients of the parameters; `each`: of every sample.

        Past casts, and in pieces where entries only move, so that nothing is rounded there.
        """
        total: dict[str, Tensor] = {}

        def add(grads: Mapping[str, Tensor], factor: Tensor | None = None) -> None:
            for name, grad in grads.items():
                grad = wide(grad)
                if factor is not None:
                    grad = grad / factor.view(-1, *[1] * (grad.dim() - 1))
                total[name] = total[name] + grad if name in total else grad

        for edge, value in values.items():
            below, value = self._past_casts(edge, value, each)
            if below[0] in self.graph.parameters:
                add({self.graph.parameters[below[0]]: value})
            elif self.ways[edge] == "general" or not self._is_half(below):
                add(self._backward(below, value, each))
            else:
                parts, factor = pieces(value, range(int(each), value.dim()))
                for piece in parts:
                    add(self._backward(below, piece, each), factor)
        return total

    def _backward(self, edge: Edge, value: Tensor, each: bool) -> dict[str, Tensor]:
        """By autograd, in the precision of the graph."""
        meta = self.graph.nodes[edge[0]]._input_metadata[edge[1]]
        value = value.to(dtype=meta.dtype, device=meta.device)
        targets = [self.graph.edge((leaf, 0)) for leaf in self.leaves.values()]
        if each:
            shapes = [self.graph.shape((leaf, 0)) for leaf in self.leaves.values()]
            pulled = pull_back([self.graph.edge(edge)], targets, [value], shapes)
            return dict(zip(self.leaves, pulled, strict=True))
        grads = torch.autograd.grad(
            [self.graph.edge(edge)], targets, [value], retain_graph=True, allow_unused=True
        )
        pairs = zip(self.leaves, grads, strict=True)
        return {name: g for name, g in pairs if g is not None}  # pyright: ignore[reportUnnecessaryComparison]

    def _past_casts(self, edge: Edge, value: Tensor, each: bool) -> tuple[Edge, Tensor]:
        """Down to where something else happens than casts, copies and transpositions."""
        while (name := self.graph.names[edge[0]]) in WHOLE:
            if name == "TBackward0":
                value = value.transpose(-2, -1) if value.dim() - each == 2 else value
            elif name in TRANSPOSES:
                node, dims = self.graph.nodes[edge[0]], value.dim() - each
                first, second = (
                    signed(d) % dims + each for d in (node._saved_dim0, node._saved_dim1)
                )
                value = value.transpose(first, second)
            edge = self.graph.children[edge[0]][0]
        return edge, value

    def _is_half(self, edge: Edge) -> bool:
        """Whether something between here and the parameters is in half precision."""
        for number, k in self._below([edge]):
            node = self.graph.nodes[number]
            is_leaf = self.graph.names[number] == ACCUMULATE
            if (node.variable if is_leaf else node._input_metadata[k]).dtype in HALF:
                return True
        return False

    def _below(self, edges: Iterable[Edge]) -> set[Edge]:
        """Everything between these and the parameters."""
        stack, seen = list(edges), set()
        while stack:
            number, k = stack.pop()
            if number >= 0 and (number, k) not in seen:
                seen.add((number, k))
                stack.extend(self.graph.children[number])
        return seen

    def zero_samples(self, samples: Tensor) -> None:
        for part in (*self.parts.values(), *self.kept.values()):
            part.zero_samples(samples)


class Formed:
    """What one parameter gets of a joint that cannot be taken apart, formed in slices."""

    method = "pulled back"

    def __init__(self, joint: Joint, name: str):
        self.joint, self.name, self.num_samples = joint, name, joint.num_samples

    def norms_squared(self, budget: Budget) -> Tensor:
        return torch.cat([square_sum(self.dense(s)) for s in self.joint.slices()])

    def weighted_sum(self, weights: Weights) -> Tensor:
        return self.joint.sums_of_rows(weights)[self.name]

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        return self.joint.rows(samples)[self.name]

    def mass(self) -> Tensor:
        """What is added is what was measured."""
        return self.norms_squared(Budget(0))

    def zero_samples(self, samples: Tensor) -> None:
        self.joint.zero_samples(samples)


def pull_back(
    outputs: Sequence[GradientEdge],
    targets: Sequence[GradientEdge],
    grads: Sequence[Tensor],
    shapes: Sequence[tuple],
) -> list[Tensor]:
    """Vector-Jacobian products for a leading batch of output gradients.

    Zeros where nothing arrives.
    """
    count = grads[0].shape[0]

    def run(cotangents: Sequence[Tensor], batched: bool) -> list[Tensor | None]:
        return list(
            torch.autograd.grad(
                outputs,
                targets,
                cotangents,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        )

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vmap tells when it falls back to a loop
            pulled = run(grads, True)
    except RuntimeError:
        each = [run([grad[k] for grad in grads], False) for k in range(count)]
        pulled = [
            None if any(g is None for g in column) else torch.stack(column)
            for column in zip(*each, strict=True)
        ]
    filler = grads[0]
    return [
        filler.new_zeros(count, *shape) if g is None else g
        for g, shape in zip(pulled, shapes, strict=True)
    ]


def nbytes_of(part: Contribution) -> int:
    """What is held of activations."""
    return getattr(part, "nbytes", 0)


def signed(dim: int) -> int:
    """A saved dimension, of which torch shows negative ones as numbers without sign."""
    return dim - 2**64 if dim >= 2**63 else dim


def in_parameter_space(part: Contribution, way: str) -> Contribution:
    if way == "itself":
        return part
    if isinstance(part, (Outer, Ragged, Single)):
        return part.transposed()
    return Dense(part.dense().transpose(1, 2))
