"""Parameters that share sources: from contributions to joint norms and to sums per parameter.

The per-sample gradient of a parameter is the sum of what arrives through all its uses: a tied
embedding and head, a cell that runs T times, two forwards in one backward, three slices of one
packed weight. Norms are those of the sum:

    same parameter, every use holds it whole   joined in the parameter's own space, cross terms
                                               included
    slices that do not overlap                 squared norms add
    anything else (weight norm, ...)           per-sample gradients of the sources, pulled back to
                                               the parameters
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .contributions import Budget, Contribution, Dense, Outer, gram_sum, square_sum
from .graph import ACCUMULATE, Edge, Graph, trace
from .lookup import Lookup
from .memory import slices
from .precision import HALF, pieces, wide
from .ragged import Ragged
from .single import Single
from .weights import Weights

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
TRANSPOSES = frozenset({"TBackward0", "TransposeBackward0"})
WHOLE = TRANSPOSES | {"ToCopyBackward0", "AliasBackward0", "CloneBackward0"}


@dataclass(frozen=True)
class Cluster:
    """Parameters whose per-sample gradients are one sum over `sources`.

    A source is a tensor that records were computed from: a parameter, or made of parameters.
    """

    parameters: tuple[str, ...]
    sources: tuple[int, ...]  # by id
    graph: Graph | None = None  # from sources to parameters, unless each source is the parameter
    edges: Mapping[int, Edge] | None = None  # where sources are in it

    def ways(self) -> dict[Edge, str]:
        """How each source holds the parameters: itself, transposed, isometric or general."""
        assert self.graph is not None
        assert self.edges is not None
        return {edge: way(self.graph, edge) for edge in self.edges.values()}

    def measured(self, parts: Mapping[int, list[Contribution]], num_samples: int) -> Alone | Joint:
        if self.graph is None:
            ((name,), (uses,)) = self.parameters, parts.values()
            return Alone(name, joined(uses))
        assert self.edges is not None
        by_edge: dict[Edge, list[Contribution]] = defaultdict(list)
        for source, uses in parts.items():
            by_edge[self.edges[source]] += uses
        return Joint(self.graph, self, by_edge, num_samples)


def clusters_of(sources: Mapping[int, Tensor], names: Mapping[int, str]) -> list[Cluster]:
    """The sources by the parameters that they are made of.

    `names` maps id(parameter) to its name; a source without any is nobody's.
    """
    derived = {key: t for key, t in sources.items() if key not in names and not t.is_leaf}
    if not derived:
        return [Cluster((names[key],), (key,)) for key in sources if key in names]
    graph = trace(list(derived.values()), names)
    below: list[frozenset[str]] = []
    for number, children in enumerate(graph.children):
        own = {graph.parameters[number]} if number in graph.parameters else set()
        below.append(frozenset(own).union(*(below[c] for c, _ in children if c >= 0)))
    edges = dict(zip(derived, graph.roots, strict=True))
    clusters: list[tuple[set[str], list[int]]] = []
    for key in sources:
        reached = below[edges[key][0]] if key in edges else {names[key]} if key in names else set()
        if not reached:
            continue
        merged, members = set(reached), [key]
        for cluster in [c for c in clusters if c[0] & merged]:
            merged, members = merged | cluster[0], cluster[1] + members
            clusters.remove(cluster)
        clusters.append((merged, members))
    found = []
    for parameters, members in clusters:
        if not any(key in edges for key in members):
            found.append(Cluster(tuple(parameters), tuple(members)))
            continue
        places = {key: edges[key] if key in edges else leaf(graph, names[key]) for key in members}
        found.append(Cluster(tuple(sorted(parameters)), tuple(members), graph, places))
    return found


def leaf(graph: Graph, name: str) -> Edge:
    return graph.leaves[name], 0


def way(graph: Graph, edge: Edge) -> str:
    """How the entries of a source are those of its parameter."""
    passed, number = [], edge[0]
    while number not in graph.parameters:
        children = [c for c in graph.children[number] if c[0] >= 0]
        if len(children) != 1 or graph.names[number] not in ISOMETRIES:
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


class Alone:
    """A parameter that records were computed from directly: most are."""

    def __init__(self, name: str, part: Contribution):
        self.name, self.part = name, part

    @property
    def method(self) -> str:
        return self.part.method

    def norms_squared(self, budget: Budget) -> Tensor:
        return self.part.norms_squared(budget)

    def weighted_sums(self, weights: Weights) -> dict[str, Tensor]:
        return {self.name: self.part.weighted_sum(weights)}

    def zero_samples(self, samples: Tensor) -> None:
        self.part.zero_samples(samples)


class Joint:
    """One cluster in one backward: the contributions of all its uses."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        uses: Mapping[Edge, list[Contribution]],
        num_samples: int,
    ):
        self.graph, self.ways, self.num_samples = graph, cluster.ways(), num_samples
        self.leaves = {name: graph.leaves[name] for name in cluster.parameters}
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
            self.parts = {edge: joined(parts) for edge, parts in uses.items()}
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
        if self.derived and budget.allows(size, sum(nbytes_of(p) for p in self.parts.values())):
            rows = [self.rows(s) for s in self._slices()]
            self.kept = {name: Dense(torch.cat([r[name] for r in rows])) for name in rows[0]}
            self.parts = {}
        norms = []
        for s in self._slices():
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

    def _slices(self) -> list[slice]:
        return slices(self.num_samples, self.bytes_per_sample())

    def bytes_per_sample(self) -> int:
        edges = [(leaf, 0) for leaf in self.leaves.values()] + list(self.parts)
        return 8 * sum(math.prod(self.graph.shape(edge)) for edge in edges)

    def rows(self, samples: slice) -> dict[str, Tensor]:
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
            return self._sums_of_rows(weights)
        return self._pull({edge: part.weighted_sum(weights) for edge, part in self.parts.items()})

    def _sums_of_rows(self, weights: Weights) -> dict[str, Tensor]:
        """From the same rows as their norms.

        To pull a sum back instead would round once more, by as much as the computation cancels.
        """
        total: dict[str, Tensor] = {}
        for s in self._slices():
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

        def add(found: Mapping[str, Tensor], factor: Tensor | None = None) -> None:
            for name, grad in found.items():
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
                found, factor = pieces(value, range(int(each), value.dim()))
                for piece in found:
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
        found = torch.autograd.grad(
            [self.graph.edge(edge)], targets, [value], retain_graph=True, allow_unused=True
        )
        pairs = zip(self.leaves, found, strict=True)
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
        stack, seen = [edge], set()
        while stack:
            number, k = stack.pop()
            if number < 0 or (number, k) in seen:
                continue
            seen.add((number, k))
            node = self.graph.nodes[number]
            if self.graph.names[number] == ACCUMULATE:
                dtype = node.variable.dtype
            else:
                dtype = node._input_metadata[k].dtype
                stack.extend(self.graph.children[number])
            if dtype in HALF:
                return True
        return False

    def zero_samples(self, samples: Tensor) -> None:
        for part in (*self.parts.values(), *self.kept.values()):
            part.zero_samples(samples)


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

    def run(given: Sequence[Tensor], batched: bool) -> list[Tensor | None]:
        return list(
            torch.autograd.grad(
                outputs,
                targets,
                given,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        )

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vmap tells when it falls back to a loop
            found = run(grads, True)
    except RuntimeError:
        each = [run([grad[k] for grad in grads], False) for k in range(count)]
        found = [
            None if any(g is None for g in column) else torch.stack(column)
            for column in zip(*each, strict=True)
        ]
    filler = grads[0]
    return [
        filler.new_zeros(count, *shape) if g is None else g
        for g, shape in zip(found, shapes, strict=True)
    ]


def nbytes_of(part: Contribution) -> int:
    """What is held of activations."""
    return getattr(part, "nbytes", 0)


def signed(dim: int) -> int:
    """A saved dimension, of which torch shows negative ones as numbers without sign."""
    return dim - 2**64 if dim >= 2**63 else dim


class Sum:
    """Several contributions to the same tensor that cannot be laid side by side."""

    def __init__(self, parts: Sequence[Contribution]):
        self.parts = list(parts)
        self.num_samples = parts[0].num_samples
        self.method = "not measured"

    def norms_squared(self, budget: Budget) -> Tensor:
        pairs = [(a, b) for k, a in enumerate(self.parts) for b in self.parts[k + 1 :]]
        if all(isinstance(a, (Outer, Lookup)) and isinstance(b, (Outer, Lookup)) for a, b in pairs):
            crossed = [cross(a, b) for a, b in pairs]
            budget.doubt(self.mass())
            alone = torch.stack([part.norms_squared(budget) for part in self.parts]).sum(0)
            self.method = " + ".join(part.method for part in self.parts) + " + cross term"
            squares = alone + 2 * torch.stack([value for value, _ in crossed]).sum(0)
            mass = alone + 2 * torch.stack([size for _, size in crossed]).sum(0)
            return Outer.guarded(gram_sum([squares], [mass]), self._squares_of, budget)
        self.method = "summed"
        budget.doubt(self.mass())
        first = self.parts[0].dense(slice(0, 1))
        formed = [square_sum(self.dense(s)) for s in slices(self.num_samples, 2 * first.nbytes)]
        return torch.cat(formed)

    def mass(self) -> Tensor:
        return torch.stack([part.mass() for part in self.parts]).sum(0)

    def _squares_of(self, samples: Tensor) -> Tensor:
        """One by one: a table may be large."""
        return torch.cat([square_sum(self.dense(sample)) for sample in samples.split(1)])

    def weighted_sum(self, weights: Weights) -> Tensor:
        total = self.parts[0].weighted_sum(weights)
        for part in self.parts[1:]:
            total = total + part.weighted_sum(weights)
        return total

    def dense(self, samples: slice | Tensor = slice(None)) -> Tensor:
        total = self.parts[0].dense(samples)
        for part in self.parts[1:]:
            total = total + part.dense(samples)
        return total

    def zero_samples(self, samples: Tensor) -> None:
        for part in self.parts:
            part.zero_samples(samples)


def in_parameter_space(part: Contribution, way: str) -> Contribution:
    if way == "itself":
        return part
    if isinstance(part, (Outer, Ragged, Single)):
        return part.transposed()
    return Dense(part.dense().transpose(1, 2))


def joined(parts: Sequence[Contribution]) -> Contribution:
    """One contribution for several to the same tensor.

    Side by side along positions where they are alike.
    """
    if len(parts) == 1:
        return parts[0]
    alike: dict[object, list[Contribution]] = defaultdict(list)
    for part in parts:
        if isinstance(part, (Ragged, Single)):
            part = part.as_outer()
        alike[(type(part), part.left.shape[1]) if isinstance(part, Outer) else type(part)].append(
            part
        )
    merged = [side_by_side(group) for group in alike.values()]
    return merged[0] if len(merged) == 1 else Sum(merged)


def side_by_side(parts: Sequence[Contribution]) -> Contribution:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Dense) for part in parts):
        return Dense(torch.stack([part.values for part in parts]).sum(0))  # type: ignore[attr-defined]
    if all(isinstance(part, Outer) for part in parts):
        left = torch.cat([wide(part.left) for part in parts], dim=2)  # type: ignore[attr-defined]
        right = torch.cat([wide(part.right) for part in parts], dim=2)  # type: ignore[attr-defined]
        return Outer(left, right, parts[0].shape)  # type: ignore[attr-defined]
    if all(isinstance(part, Lookup) for part in parts):
        index = torch.cat([part.index for part in parts], dim=1)  # type: ignore[attr-defined]
        rows = torch.cat([part.rows for part in parts], dim=1)  # type: ignore[attr-defined]
        return Lookup(index, rows, parts[0].num_rows)  # type: ignore[attr-defined]
    return Sum(parts)


def cross(first: Contribution, second: Contribution) -> tuple[Tensor, Tensor]:
    """[n]: the inner product of two samples' gradients of the same matrix, as Outer or Lookup.

    And what it would be without cancellation.
    """
    if isinstance(first, Lookup):
        first, second = second, first
    assert isinstance(first, Outer)
    n, _, p, _ = first.left.shape
    if isinstance(second, Outer):
        left = torch.matmul(wide(first.left), wide(second.left).transpose(-2, -1))
        right = torch.matmul(wide(first.right), wide(second.right).transpose(-2, -1))
        products = (left * right).flatten(1)
        return products.sum(1), products.abs().sum(1)
    assert isinstance(second, Lookup)
    parts, values = [], second.values
    for s in slices(n, 12 * p * second.index.shape[1]):
        index = second.index[s].clamp(min=0)
        chosen = torch.gather(wide(first.left[s, 0]), 2, index.unsqueeze(1).expand(-1, p, -1))
        inner = torch.bmm(wide(first.right[s, 0]), values[s].transpose(1, 2))
        products = (chosen * inner).flatten(1)
        parts.append((products.sum(1), products.abs_().sum(1)))
    values_of, sizes = zip(*parts, strict=True)
    return torch.cat(values_of), torch.cat(sizes)
