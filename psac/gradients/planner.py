"""Plans are found by experiment.

The forward is repeated for three samples with slightly moved parameters. Shapes that differ from
the full batch's show where samples are; a backward in which each sample's output gradient is
multiplied by its own factor shows which rows are whose: they must grow by exactly one sample's
factor. A plan is believed only after its proof (proof.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from .capture import gradients
from .errors import CannotAssign, NotIsolated
from .graph import Edge, Graph, trace
from .layout import Layout
from .plan import Draft, Plan, assign
from .samples import Batch
from .sandbox import MIDDLE, sandbox


@dataclass(frozen=True)
class Forward:
    """A forward that can be repeated for some of its samples: `run(tree)` gives its roots."""

    model: nn.Module
    names: dict[int, str]
    run: Callable[[Any], list[Tensor]]
    batch: Batch

    @property
    def num_samples(self) -> int:
        return self.batch.num_samples

    def among(self, samples: Sequence[int]) -> Forward:
        """The forward of some of its samples only."""
        tree = self.batch.take(samples)
        return replace(self, batch=Batch(tree, len(samples), self.batch.axes))

    def alone(self, sample: int, draw: float = MIDDLE) -> Repeated:
        """One sample by itself; a model that needs company is not isolated."""
        try:
            return self.again([sample], draw=draw)
        except (RuntimeError, ValueError, IndexError) as error:
            raise NotIsolated(
                f"the forward fails on one sample alone, as if it needed others: {error}"
            ) from error

    def again(
        self, samples: Sequence[int], probing: bool = False, draw: float = MIDDLE
    ) -> Repeated:
        """These samples alone, in the sandbox.

        For a probe parameters are moved and random layers are left to chance, so that what a
        random permutation mixes is seen as mixed.
        """
        with sandbox(self.model, probing, quiet=not probing, draw=draw) as traces:
            roots = self.run(self.batch.take(samples))
            buffers = dict(self.model.named_buffers())
        stand_ins = traces.stand_ins.items()
        known = {key: original for key, original in stand_ins if id(original) in self.names}
        names = self.names | {key: self.names[id(original)] for key, original in known.items()}
        return Repeated(roots, trace(roots, names), buffers, traces.drew)

    def outputs(self, samples: Sequence[int], draw: float = MIDDLE) -> list[Tensor]:
        """What `again` returns, without what a backward would need: little memory for many samples.

        Gradients are on all the same, so that the model cannot tell the difference.
        """
        forget = saved_tensors_hooks(lambda tensor: None, lambda nothing: torch.empty(0))
        with sandbox(self.model, draw=draw), forget:
            return [root.detach() for root in self.run(self.batch.take(samples))]


class Repeated(NamedTuple):
    roots: list[Tensor]
    graph: Graph
    buffers: dict[str, Tensor]  # as the forward left them
    drew: bool  # random numbers that another draw would have changed


def find_plan(full: Graph, forward: Forward) -> Plan:
    """A plan for this graph.

    CannotAssign if its rows have no fixed place, NotIsolated if samples mix.
    """
    draft, found = find_layouts(full, forward, 3 if forward.num_samples != 3 else 4)
    for more in (4, 5, 7):  # sizes without a common factor tell apart what one size leaves open
        if all(len(possible) == 1 for possible in found.values()):
            break
        if more != draft.num_part and more != forward.num_samples:
            _, again = find_layouts(full, forward, more)
            found = {
                edge: [c for c in possible if c in again[edge]] for edge, possible in found.items()
            }
    # Still open: its gradient was zero in every probe. Its layout is asked for when one arrives.
    layouts = {edge: c[0] if len(c) == 1 else None for edge, c in found.items()}
    return draft.plan(layouts, list(forward.names.values()))


def find_layouts(
    full: Graph, forward: Forward, num_part: int
) -> tuple[Draft, dict[Edge, list[Layout]]]:
    """What a probe of `num_part` samples leaves possible for each batched output of each tap."""
    n = forward.num_samples
    part = forward.again([k % n for k in range(num_part)], probing=True).graph
    draft = Draft(full, part, n, num_part)
    frontier = draft.frontier()
    errors: list[Exception] = []
    for inner in (None, 1):
        tops = {edge: Layout(draft.dims[edge[0]][edge[1]] or 0, inner) for edge in frontier}
        try:
            return draft, assign(draft, *probe(draft, tops))
        except (CannotAssign, NotIsolated) as error:
            errors.append(error)
    raise errors[0]


def probe(
    draft: Draft, tops: dict[Edge, Layout]
) -> tuple[dict[Edge, Tensor], dict[Edge, Tensor], Tensor]:
    """Gradients at the taps for random output gradients.

    And for the same times one factor per sample.
    """
    graph, n = draft.part, draft.num_part
    factors = 2.0 ** torch.arange(n)
    generator = torch.Generator().manual_seed(0)
    plain, scaled = [], []
    for edge, top in tops.items():
        meta = graph.nodes[edge[0]]._input_metadata[edge[1]]
        ones = torch.randn(graph.shape(edge), generator=generator).to(
            dtype=meta.dtype, device=meta.device
        )
        column = torch.empty(ones.shape[top.dim], device=ones.device, dtype=ones.dtype)
        for sample in range(n):
            column[top.rows_of(len(column), n, sample)] = float(factors[sample])
        plain.append(ones)
        scaled.append(ones * column.view(-1, *[1] * (ones.dim() - top.dim - 1)))
    edges = list(draft.asked)
    roots = [graph.edge(edge) for edge in tops]
    first = gradients(graph, roots, plain, edges, retain_graph=True)
    second = gradients(graph, roots, scaled, edges, retain_graph=True)
    return first, second, factors
