"""What a rule is given: one node of the graph at the moment its output gradients arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.utils.checkpoint import GraphExecGroup

from ..contributions import Contribution
from ..graph import Edge, Graph, Node
from ..layout import Layout
from ..plan import Tap

Contributions = dict[int, Contribution]


class Arrival(NamedTuple):
    """One node and the gradients of its outputs."""

    graph: Graph
    tap: Tap
    grads: Sequence[Tensor | None]
    num_samples: int
    # activation checkpointing recomputes once for all that is read within it
    reading: GraphExecGroup

    @property
    def number(self) -> int:
        """Of the node."""
        return self.tap.number

    @property
    def node(self) -> Node:
        return self.graph.nodes[self.tap.number]

    @property
    def name(self) -> str:
        return self.graph.names[self.tap.number]

    @property
    def inputs(self) -> Mapping[int, Edge]:
        """Those that hold parameters and no samples: where each comes from, by number."""
        return self.tap.inputs

    def shape(self, number: int) -> tuple[int, ...]:
        """Of an input."""
        return self.graph.shape(self.inputs[number])

    @property
    def grad(self) -> Tensor:
        """The output gradient of an operation with one output."""
        grad = self.grads[0]
        assert grad is not None
        return grad

    @property
    def layout(self) -> Layout:
        layout = self.tap.layouts[0]
        assert layout is not None
        return layout

    def samples_first(self, tensor: Tensor) -> Tensor:
        return self.layout.samples_first(tensor, self.num_samples)
