"""The autograd graph between tensors of parameters and the parameters themselves, as a list.

A weight that records meet may be computed from parameters: a slice, a cast, weight norm.  `trace`
lists all nodes on the way, so that gradients can be pulled back to the parameters.

Guarantee: the trace holds every path from the roots to a leaf.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

Node = Any  # torch.autograd.graph.Node; its saved tensors are attributes that stubs do not know
Edge = tuple[int, int]  # number of a node, number of its output

ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class Graph:
    """Nodes in post-order: a node's children come before it."""

    nodes: list[Node]
    names: tuple[str, ...]
    children: tuple[tuple[Edge, ...], ...]
    roots: tuple[Edge, ...]
    parameters: dict[int, str]  # node number of a private parameter's leaf -> its name

    @functools.cached_property
    def leaves(self) -> dict[str, int]:
        """The node number of each private parameter, by name."""
        return {name: number for number, name in self.parameters.items()}

    def edge(self, edge: Edge) -> GradientEdge:
        return GradientEdge(self.nodes[edge[0]], edge[1])

    def shape(self, edge: Edge) -> tuple[int, ...]:
        number, k = edge
        if self.names[number] == ACCUMULATE:
            return tuple(self.nodes[number].variable.shape)
        return tuple(self.nodes[number]._input_metadata[k].shape)


name_of: Callable[[Node], str] = operator.methodcaller("name")


def trace(roots: Sequence[Tensor], parameter_names: Mapping[int, str]) -> Graph:
    """The graph below `roots`; `parameter_names` maps id(parameter) to its name."""
    numbers: dict[Node, int] = {}
    nodes: list[Node] = []
    children: list[tuple[Edge, ...]] = []
    edges = [get_gradient_edge(root) for root in roots]
    stack = [edge.node for edge in reversed(edges)]
    expanded: dict[Node, tuple] = {}
    while stack:
        node = stack[-1]
        following = expanded.get(node)
        if following is None:
            following = expanded[node] = node.next_functions
            before = len(stack)
            stack += [c for c, _ in reversed(following) if c is not None and c not in numbers]
            if len(stack) > before:
                continue
        stack.pop()
        if node not in numbers:
            numbers[node] = len(nodes)
            nodes.append(node)
            children.append(
                tuple([(-1, 0) if c is None else (numbers[c], k) for c, k in following])
            )
    names = tuple(map(name_of, nodes))
    leaves = {k: id(nodes[k].variable) for k, name in enumerate(names) if name == ACCUMULATE}
    return Graph(
        nodes=nodes,
        names=names,
        children=tuple(children),
        roots=tuple((numbers[edge.node], edge.output_nr) for edge in edges),
        parameters={k: parameter_names[key] for k, key in leaves.items() if key in parameter_names},
    )
