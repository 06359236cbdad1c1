"""From two graphs of the same forward to a plan.

A plan says which node reads which parameters, and where its samples are.

Words. A tensor is *batched* if its shape grows with the number of samples. A *tap* is a node
with a batched output that reads an unbatched tensor made of parameters: there, and only there,
per-sample gradients of parameters arise. The unbatched tensor (a *source*) is a parameter,
or derived from parameters alone (transposed, normalised, cast, sliced). Sources that share
parameters form a *cluster*, whose norms are taken jointly: the norm of a sum of gradients is
not the sum of their norms.

Guarantees. Every path from a root to a private parameter passes exactly one tap of the plan;
a path that passes none (a regulariser) or leaves the batch and enters it again (a statistic
over samples) is refused.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import layout as layouts
from .errors import CannotAssign, NotIsolated
from .graph import Edge, Graph
from .layout import Layout
from .moves import Move, may_move

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
# Gradients below this are rounding of zero (float32 has no normal numbers there to compare).
NOTHING = 1e-30
TRANSPOSES = frozenset({"TBackward0", "TransposeBackward0"})
WHOLE = TRANSPOSES | {"ToCopyBackward0", "AliasBackward0", "CloneBackward0"}


@dataclass(frozen=True)
class Tap:
    """Node `number` reads the sources `inputs` (input number -> edge)."""

    number: int
    inputs: dict[int, Edge]
    # by output; None where there are no samples, or none were seen yet
    layouts: tuple[Layout | None, ...]
    positions: tuple[int, ...]  # by output: entries for each sample, what the layout was seen at
    terminal: bool  # no tap lies below it, so that backward does not run it by itself


@dataclass(frozen=True)
class Cluster:
    """Parameters whose per-sample gradients are one sum over `sources`.

    `ways` says how a source holds them.
    """

    parameters: tuple[str, ...]
    sources: tuple[Edge, ...]
    uses: tuple[tuple[int, int], ...]  # (node number, input number)
    ways: dict[Edge, str]  # "itself", "transposed", "isometric", "general"

    @functools.cached_property
    def whole(self) -> bool:
        """Whether every source is the parameter, all of it."""
        return all(way in ("itself", "transposed") for way in self.ways.values())

    @functools.cached_property
    def alone(self) -> str | None:
        """How its only use holds its only parameter whole."""
        (way, *others) = self.ways.values()
        return way if self.whole and not others and len(self.uses) == 1 else None


@dataclass
class Plan:
    signature: tuple
    taps: tuple[Tap, ...]
    clusters: tuple[Cluster, ...]
    unused: tuple[str, ...]  # private parameters that the forward did not touch
    moves: tuple[Move, ...] = ()  # asked again on every batch
    # The plans of the same operations for inputs of other shapes, by these; all share this one.
    variants: dict[tuple, Plan] = field(default_factory=dict)
    first: Plan | None = None  # of the variants, if it is another one
    uses: int = 0  # of all variants, counted by the first; a proof is due when they have doubled
    root_dims: list[int | None] | None = None  # where outputs hold the samples, once proved
    # inputs and output gradients of all taps, as of the largest batch so far
    activation_bytes: int = 0
    # what the rules chose, for `check`
    methods: dict[tuple[str, ...], str] = field(default_factory=dict)

    @functools.cached_property
    def plain(self) -> bool:
        """Whether every tensor that it names has one entry for each sample, whatever its shape."""
        moved = [positions for move in self.moves for positions in move.positions]
        return all(p == 1 for tap in self.taps for p in tap.positions) and set(moved) <= {1}

    def fits(self, graph: Graph, n: int) -> bool:
        """Whether samples have as many rows in this graph as they had when the plan was made."""
        rows = [
            (graph.shape((tap.number, k)), layout, positions)
            for tap in self.taps
            for k, (layout, positions) in enumerate(zip(tap.layouts, tap.positions, strict=True))
        ]
        for move in self.moves:
            rows += [
                (graph.shape(move.target), move.target_layout, move.positions[0]),
                (graph.shape(move.source), move.source_layout, move.positions[1]),
            ]
        return all(
            layout is None or shape[layout.dim] == positions * n
            for shape, layout, positions in rows
        )

    @functools.cached_property
    def cluster_of(self) -> dict[tuple[int, int], int]:
        """The place of the cluster that has this use."""
        places = enumerate(self.clusters)
        return {use: place for place, cluster in places for use in cluster.uses}


class Draft:
    """The plan before layouts of merged dimensions are known."""

    def __init__(self, full: Graph, part: Graph, num_full: int, num_part: int):
        if full.signature != part.signature:
            raise CannotAssign("the operations that run depend on the data or on the batch size")
        self.full, self.part = full, part
        self.num_full, self.num_part = num_full, num_part
        self.reach = self._names_below()
        self.dims = [self._dims_of(k) if self.reach[k] else () for k in range(len(full.nodes))]
        self._refuse_mixing()
        self.uses = self._uses()
        self.moves = self._moves()

    def _names_below(self) -> list[frozenset[str]]:
        """For each node, the parameters below it."""
        reach: list[frozenset[str]] = []
        for number, children in enumerate(self.full.children):
            below = {self.full.parameters[number]} if number in self.full.parameters else set()
            for child, _ in children:
                if child >= 0:
                    below |= reach[child]
            reach.append(frozenset(below))
        return reach

    def _dims_of(self, number: int) -> tuple[int | None, ...]:
        found = []
        for output in range(self.full.num_outputs(number)):
            shapes = self.full.shape((number, output)), self.part.shape((number, output))
            try:
                found.append(layouts.find(*shapes, self.num_full, self.num_part))
            except ValueError as error:
                raise CannotAssign(f"{self.full.names[number]}: {error}") from None
        return tuple(found)

    def batched(self, number: int) -> bool:
        return any(dim is not None for dim in self.dims[number])

    def frontier(self) -> list[Edge]:
        """The highest batched tensors.

        Outputs of the model, or what a reduced loss was reduced from.
        """
        found: dict[Edge, None] = {}
        seen: set[Edge] = set()
        stack = list(self.full.roots)
        while stack:
            edge = stack.pop()
            if edge in seen or not self.reach[edge[0]]:
                continue
            seen.add(edge)
            if self.dims[edge[0]][edge[1]] is not None:
                found[edge] = None
            elif edge[0] in self.full.parameters:
                raise NotIsolated(
                    f"parameter '{self.full.parameters[edge[0]]}' enters the loss without any "
                    "sample (a regulariser?), so its gradient belongs to no sample. "
                    "Use the optimizer's weight_decay instead."
                )
            else:
                stack.extend(child for child in self.full.children[edge[0]] if child[0] >= 0)
        return list(found)

    def _refuse_mixing(self) -> None:
        """A statistic over samples that is used again shows as batched -> unbatched -> batched."""
        holds_batched: list[bool] = []
        for number, children in enumerate(self.full.children):
            relevant = [c for c, _ in children if c >= 0 and self.reach[c]]
            holds_batched.append(self.batched(number) or any(holds_batched[c] for c in relevant))
            if self.batched(number):
                for child, output in children:
                    if (
                        child >= 0
                        and self.reach[child]
                        and self.dims[child][output] is None
                        and holds_batched[child]
                    ):
                        raise NotIsolated(
                            f"{self.full.names[child]} makes one tensor of all samples, which "
                            f"{self.full.names[number]} uses again: samples leak into each other, "
                            f"on the way to {sample_of(self.reach[child])}."
                        )

    def _uses(self) -> dict[int, dict[int, Edge]]:
        uses: dict[int, dict[int, Edge]] = {}
        for number, children in enumerate(self.full.children):
            if self.reach[number] and self.batched(number):
                inputs = {
                    k: (child, output)
                    for k, (child, output) in enumerate(children)
                    if child >= 0 and self.reach[child] and self.dims[child][output] is None
                }
                if inputs:
                    uses[number] = inputs
        return uses

    def _moves(self) -> list[tuple[Edge, Edge]]:
        """(target, source) where data may decide which rows of the source the target has."""
        return [
            ((number, output), child)
            for number, children in enumerate(self.full.children)
            if self.reach[number]
            for output, dim in enumerate(self.dims[number])
            if dim is not None
            for place, child in enumerate(children)
            if child[0] >= 0 and self.reach[child[0]]
            for along in [self.dims[child[0]][child[1]]]
            if along is not None and may_move(self.part, number, place, along)
        ]

    @functools.cached_property
    def asked(self) -> dict[Edge, int]:
        """The tensors whose rows must be assigned to samples, and where they hold them."""
        edges = [(number, k) for number in self.uses for k in range(len(self.dims[number]))]
        edges += [edge for move in self.moves for edge in move]
        dims = {edge: self.dims[edge[0]][edge[1]] for edge in edges}
        return {edge: dim for edge, dim in dims.items() if dim is not None}

    def positions(self, edge: Edge) -> int:
        """Entries for each sample."""
        dim = self.dims[edge[0]][edge[1]]
        return 1 if dim is None else self.part.shape(edge)[dim] // self.num_part

    def plan(self, found: dict[Edge, Layout | None], all_names: Sequence[str]) -> Plan:
        """`found` gives the layout of each batched output of each tap, and of each move."""
        leads: list[bool] = []
        taps = []
        for number, children in enumerate(self.full.children):
            below = any(c >= 0 and leads[c] for c, _ in children)
            leads.append(below or number in self.uses or number in self.full.foreign)
            if number in self.uses:
                outputs = tuple(found.get((number, k)) for k in range(len(self.dims[number])))
                positions = tuple(self.positions((number, k)) for k in range(len(outputs)))
                taps.append(Tap(number, self.uses[number], outputs, positions, terminal=not below))
        used = frozenset().union(
            *(self.reach[edge[0]] for tap in taps for edge in tap.inputs.values())
        )
        return Plan(
            signature=self.full.signature,
            taps=tuple(taps),
            clusters=tuple(self._clusters()),
            unused=tuple(name for name in all_names if name not in used),
            moves=tuple(self._move(target, source, found) for target, source in self.moves),
        )

    def _move(self, target: Edge, source: Edge, found: dict[Edge, Layout | None]) -> Move:
        ours, theirs = found[target], found[source]
        if ours is None or theirs is None:
            raise CannotAssign(
                f"no gradient passed {self.full.names[target[0]]}, which data steer, so that the "
                "order of its rows is not known"
            )
        positions = self.positions(target), self.positions(source)
        return Move(target, source, ours, theirs, positions)

    def _clusters(self) -> list[Cluster]:
        uses: dict[Edge, list[tuple[int, int]]] = defaultdict(list)
        for number, inputs in self.uses.items():
            for k, edge in inputs.items():
                uses[edge].append((number, k))
        groups: list[tuple[set[str], list[Edge]]] = []
        for edge in uses:
            names, edges = set(self.reach[edge[0]]), [edge]
            for group in [g for g in groups if g[0] & names]:
                names, edges = names | group[0], group[1] + edges
                groups.remove(group)
            groups.append((names, edges))
        return [
            Cluster(
                parameters=tuple(sorted(names)),
                sources=tuple(edges),
                uses=tuple(use for edge in edges for use in uses[edge]),
                ways={edge: self._way(edge) for edge in edges},
            )
            for names, edges in groups
        ]

    def _way(self, edge: Edge) -> str:
        """How the entries of a source are those of its parameter."""
        passed = []
        number = edge[0]
        while number not in self.full.parameters:
            children = [c for c in self.full.children[number] if c[0] >= 0]
            name = self.full.names[number]
            if len(children) != 1 or name not in ISOMETRIES:
                return "general"
            passed.append(name)
            number = children[0][0]
        if all(name in WHOLE for name in passed):
            turns = sum(name in TRANSPOSES for name in passed)
            if turns == 0:
                return "itself"
            if len(self.full.shape(edge)) == 2:
                return "transposed" if turns % 2 else "itself"
        return "isometric"


def sample_of(names: frozenset[str]) -> str:
    first, *others = sorted(names)
    return f"'{first}'" + (f" and {len(others)} other parameters" if others else "")


def assign(
    draft: Draft, first: dict[Edge, Tensor], second: dict[Edge, Tensor], factors: Tensor
) -> dict[Edge, list[Layout]]:
    """The layouts that a probe leaves possible, for each batched tensor that is asked for.

    `first` and `second` are gradients at the taps of a graph of len(factors) samples, where in
    the second sample s entered with `factors[s]` times the output gradient. Rows of sample s
    must have grown by exactly that; a tensor where no layout explains the growth holds gradients
    of several samples at once.
    """
    return {
        edge: explain(draft, edge, dim, first.get(edge), second.get(edge), factors)
        for edge, dim in draft.asked.items()
    }


def explain(
    draft: Draft, edge: Edge, dim: int, before: Tensor | None, after: Tensor | None, factors: Tensor
) -> list[Layout]:
    n = len(factors)
    possible = list(layouts.candidates(dim, draft.part.shape(edge)[dim], n))
    if before is None or after is None or not after.numel():
        return possible
    tolerance = 1e-3 if before.dtype in (torch.float32, torch.float64) else 0.1
    # a sample may have no finite gradient; what is compared is the rest
    finite = torch.isfinite(before) & torch.isfinite(after)
    before, after = before.where(finite, 0), after.where(finite, 0)
    scale = float(after.abs().max())
    if scale < NOTHING:
        return possible
    fitting = []
    for candidate in possible:
        rows = candidate.samples_first(before, n), candidate.samples_first(after, n)
        expected = rows[0] * factors.to(before).view(-1, *[1] * (rows[0].dim() - 1))
        if float((expected - rows[1]).abs().max()) <= tolerance * scale:
            fitting.append(candidate)
    if not fitting:
        refuse_mixed_rows(draft, edge, before.movedim(dim, 0), after.movedim(dim, 0), factors)
        raise CannotAssign(
            f"rows at {draft.full.names[edge[0]]}, which reads "
            f"{sample_of(draft.reach[edge[0]])}, belong to samples in no fixed order"
        )
    return fitting


def refuse_mixed_rows(
    draft: Draft, edge: Edge, before: Tensor, after: Tensor, factors: Tensor
) -> None:
    """Raises where a row has grown by no sample's factor: it is a gradient of several samples."""
    scale = float(after.abs().max())
    flat, grown = before.reshape(len(before), -1), after.reshape(len(after), -1)
    errors = [(flat * float(f) - grown).abs().amax(1) for f in factors]
    if not bool((torch.stack(errors).amin(0) <= 1e-2 * scale).all()):
        raise NotIsolated(
            f"gradients of several samples are mixed at {draft.full.names[edge[0]]}, which reads "
            f"{sample_of(draft.reach[edge[0]])}: the samples of a batch leak into each other there."
        )
