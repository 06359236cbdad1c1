"""The autograd graph of one forward, as a list.

Everything that a model computes from its parameters is in this graph, whatever Python code
built it: module calls, functional calls, raw parameters, tied weights, fused attention. `trace`
numbers its nodes in a fixed order, so two forwards of the same control flow give the same
`signature` and node k of one is node k of the other. That is how the engine learns which tensors
carry samples (their shapes differ between batches of different sizes) and how a plan made once
serves every later batch.

Guarantee: the trace holds every path from the roots to a leaf; a path that ends in no private
parameter is data or a foreign leaf.
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
# torch picks between these by strides and dispatch modes; they are the same operation.
SAME = {"ReshapeAliasBackward0": "ViewBackward0", "UnsafeViewBackward0": "ViewBackward0"}


@dataclass(frozen=True)
class Graph:
    """Nodes in post-order: a node's children come before it."""

    nodes: list[Node]
    names: tuple[str, ...]
    children: tuple[tuple[Edge, ...], ...]
    roots: tuple[Edge, ...]
    parameters: dict[int, str]  # node number of a private parameter's leaf -> its name
    foreign: tuple[int, ...]  # leaves that are not private parameters: inputs, other models

    @property
    def signature(self) -> tuple:
        """Equal for two forwards that ran the same operations on the same parameters."""
        return self.names, self.children, self.roots, tuple(self.parameters.items())

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

    def num_outputs(self, number: int) -> int:
        return len(self.nodes[number]._input_metadata)


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
    names = tuple([SAME.get(name, name) for name in map(name_of, nodes)])
    parameters, foreign = {}, []
    for number, name in enumerate(names):
        if name == ACCUMULATE:
            parameter = parameter_names.get(id(nodes[number].variable))
            if parameter is None:
                foreign.append(number)
            else:
                parameters[number] = parameter
    return Graph(
        nodes=nodes,
        names=names,
        children=tuple(children),
        roots=tuple((numbers[edge.node], edge.output_nr) for edge in edges),
        parameters=parameters,
        foreign=tuple(foreign),
    )
