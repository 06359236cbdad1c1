"""What a rule is given: one node of the graph at the moment its output gradients arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.checkpoint import GraphExecGroup

from ..contributions import Contribution
from ..layout import Layout

Contributions = dict[int, Contribution]


class Arrival(NamedTuple):
    """One node and the gradients of its outputs.

    `inputs` are the numbers of the inputs (of shapes `shapes`) that hold parameters and no samples.
    """

    node: Any
    name: str
    grads: Sequence[Tensor | None]
    layouts: Sequence[Layout | None]
    inputs: Sequence[int]
    shapes: dict[int, tuple[int, ...]]
    num_samples: int
    # activation checkpointing recomputes once for all that is read within it
    reading: GraphExecGroup

    @property
    def grad(self) -> Tensor:
        """The output gradient of an operation with one output."""
        grad = self.grads[0]
        assert grad is not None
        return grad

    @property
    def layout(self) -> Layout:
        layout = self.layouts[0]
        assert layout is not None
        return layout

    def samples_first(self, tensor: Tensor) -> Tensor:
        return self.layout.samples_first(tensor, self.num_samples)
