"""Plans are found by experiment and believed only after a proof.

Finding: the forward is repeated for three samples with slightly moved parameters. Shapes that
differ from the full batch's show where samples are; a backward in which each sample's output
gradient is multiplied by its own factor shows which rows are whose (rows must grow by exactly one
sample's factor, else samples leak into each other).

Proof, on the first batch of a plan: the forward is repeated without randomness, for the whole
batch by the engine and for a few samples alone by plain autograd. Outputs, norms and directions
must agree, or `NotIsolated` is raised and training does not start. Together this costs about two
ordinary steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .capture import capture, capture_single, gradients
from .errors import CannotAssign, NotIsolated, PrivacyError
from .graph import Edge, Graph, trace
from .layout import Layout, find
from .plan import Draft, Plan, assign
from .samples import Batch
from .sandbox import sandbox

PROVED_SAMPLES = 3


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

    def alone(self, sample: int) -> Repeated:
        """One sample by itself; a model that needs company is not isolated."""
        try:
            return self.again([sample])
        except (RuntimeError, ValueError, IndexError) as error:
            raise NotIsolated(
                f"the forward fails on one sample alone, as if it needed others: {error}"
            ) from error

    def again(self, samples: Sequence[int], perturb: bool = False) -> Repeated:
        """These samples alone, in the sandbox."""
        with sandbox(self.model, perturb) as stand_ins:
            roots = self.run(self.batch.take(samples))
            buffers = dict(self.model.named_buffers())
        names = self.names | {key: self.names[id(original)] for key, original in stand_ins.items()}
        return Repeated(roots, trace(roots, names), buffers)


class Repeated(NamedTuple):
    roots: list[Tensor]
    graph: Graph
    buffers: dict[str, Tensor]  # as the forward left them


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
    return draft.plan(
        {edge: decided(draft, edge, c) for edge, c in found.items()}, list(forward.names.values())
    )


def decided(draft: Draft, edge: Edge, possible: list[Layout]) -> Layout | None:
    """None for a tensor whose gradient was zero in every probe.

    Its layout is asked for when one arrives.
    """
    if len(possible) == 1:
        return possible[0]
    return None


def find_layouts(
    full: Graph, forward: Forward, num_part: int
) -> tuple[Draft, dict[Edge, list[Layout]]]:
    """What a probe of `num_part` samples leaves possible for each batched output of each tap."""
    n = forward.num_samples
    part = forward.again([k % n for k in range(num_part)], perturb=True).graph
    draft = Draft(full, part, n, num_part)
    frontier = draft.frontier()
    errors: list[Exception] = []
    for inner in (None, 1):
        tops = {edge: Layout(draft.dims[edge[0]][edge[1]] or 0, inner) for edge in frontier}
        try:
            return draft, assign(draft, *probe(draft, tops))
        except CannotAssign as error:
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
    edges = [
        (number, k)
        for number in draft.uses
        for k, dim in enumerate(draft.dims[number])
        if dim is not None
    ]
    roots = [graph.edge(edge) for edge in tops]
    first = gradients(graph, roots, plain, edges, retain_graph=True)
    second = gradients(graph, roots, scaled, edges, retain_graph=True)
    return first, second, factors


def plan_or_none(
    full: Graph, forward: Forward, cotangents: Sequence[Tensor | None], scalar_share: float
) -> tuple[Plan | None, float | str]:
    """A proved plan and its error, or None and why only the loop over samples serves.

    The isolation of that loop is proved then.
    """
    try:
        plan = find_plan(full, forward)
        return plan, prove(plan, forward, cotangents, scalar_share)
    except CannotAssign as reason:
        prove_isolation(forward, scalar_share)
        return None, str(reason)


def first_that_fits(
    forwards: Iterable[Forward], attempt: Callable[[Forward], tuple[Plan | None, float | str]]
) -> tuple[Forward, Plan | None, float | str]:
    """The first reading of the inputs that stands the proof; else the error of the likeliest."""
    errors: list[Exception] = []
    for forward in forwards:
        try:
            return forward, *attempt(forward)
        except (NotIsolated, RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, PrivacyError) and not isinstance(error, NotIsolated):
                raise
            errors.append(error)
    raise next((e for e in errors if isinstance(e, NotIsolated)), errors[0])


def prove(
    plan: Plan, forward: Forward, cotangents: Sequence[Tensor | None], scalar_share: float
) -> float:
    """The engine's per-sample gradients against plain autograd on samples alone.

    Returns the worst relative error. `scalar_share` is what one sample has in a loss that the
    forward reduced by itself: 1/n for a mean, 1 for a sum.
    """
    n = forward.num_samples
    roots, graph, buffers = forward.again(range(n))
    if graph.signature != plan.signature:
        raise CannotAssign("the operations that run change from forward to forward")
    given = [
        torch.zeros_like(root) if c is None else c
        for root, c in zip(roots, cotangents, strict=True)
    ]
    captured = capture(graph, plan, roots, given, n)
    if captured.norms_squared is None:
        return 0.0
    chosen = sorted({0, n // 2, n - 1})[:PROVED_SAMPLES]
    tolerance = 5e-2 if any(r.dtype in (torch.bfloat16, torch.float16) for r in roots) else 5e-3
    norms = captured.norms_squared.sqrt()
    scale = float(norms[torch.isfinite(norms)].max()) if bool(torch.isfinite(norms).any()) else 0.0
    worst, expected = 0.0, {}
    for place, sample in enumerate(chosen):
        alone, alone_graph, alone_buffers = forward.alone(sample)
        refuse_statistics(buffers, alone_buffers)
        shares = [
            share(c, root, one, sample, n, scalar_share, tolerance)
            for c, root, one in zip(given, roots, alone, strict=True)
        ]
        loop, _ = capture_single(alone_graph, alone, shares)
        norm = sum(float(g.double().square().sum()) for g in loop.values()) ** 0.5
        if not torch.isfinite(torch.tensor(norm)):
            continue
        error = abs(norm - float(norms[sample])) / max(norm, 1e-3 * scale, 1e-12)
        if not error <= tolerance:
            raise NotIsolated(
                f"sample {sample} has a gradient of norm {float(norms[sample]):.6g} in the batch "
                f"and {norm:.6g} alone: it depends on the other samples, or the loss is not a mean "
                "or sum over samples."
            )
        worst = max(worst, error)
        for name, grad in loop.items():
            expected[name] = expected.get(name, 0) + (place + 1) * grad.to(
                captured.norms_squared.dtype
            )
    weights = torch.zeros_like(norms)
    weights[chosen] = torch.arange(1.0, len(chosen) + 1).to(weights)
    captured.zero_samples(~torch.isfinite(norms))
    sums = captured.weighted_sums(weights)
    size = sum(float(g.double().square().sum()) for g in expected.values()) ** 0.5
    for name, grad in expected.items():
        error = float((sums.get(name, torch.zeros_like(grad)) - grad).norm()) / max(size, 1e-12)
        if not error <= tolerance:
            raise NotIsolated(
                f"the gradient of '{name}' in the batch is not that of the samples alone "
                f"(off by {error:.1%})"
            )
        worst = max(worst, error)
    return worst


def prove_isolation(forward: Forward, scalar_share: float) -> None:
    """For the loop over samples: what the batch gives a sample is what it gets alone.

    And reduced losses add up.
    """
    n = forward.num_samples
    roots, _, buffers = forward.again(range(n))
    sums = [0.0] * len(roots)
    reduced = [root.dim() == 0 for root in roots]
    for sample in range(n) if any(reduced) else sorted({0, n // 2, n - 1}):
        alone, _, alone_buffers = forward.alone(sample)
        refuse_statistics(buffers, alone_buffers)
        for k, (root, one) in enumerate(zip(roots, alone, strict=True)):
            share(torch.zeros_like(root), root, one, sample, n, scalar_share, 5e-3)
            sums[k] += float(one.detach().sum()) * scalar_share
    for root, total, is_reduced in zip(roots, sums, reduced, strict=True):
        if is_reduced and not abs(total - float(root)) <= 5e-3 * max(abs(total), 1e-6):
            raise NotIsolated(
                f"the loss of the batch is {float(root):.6g} and that of its samples {total:.6g}."
            )


def refuse_statistics(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Raises for buffers that two forwards on different samples leave different.

    Those are computed from private samples.
    """
    for name, buffer in first.items():
        if name in second and not torch.equal(buffer, second[name]):
            raise PrivacyError(
                f"the forward writes values computed from its samples into the buffer '{name}' "
                "(running statistics?), which would be released without noise. Switch that off "
                "(track_running_stats=False, momentum updates)."
            )


def share(
    cotangent: Tensor,
    root: Tensor,
    alone: Tensor,
    sample: int,
    n: int,
    scalar_share: float,
    tolerance: float,
) -> Tensor:
    """The part of an output gradient that belongs to one sample.

    Its output must be the same alone.
    """
    dim = find(root.shape, alone.shape, n, 1)
    if dim is None:
        return cotangent * scalar_share
    layout = Layout(dim)
    rows = torch.tensor(layout.rows_of(root.shape[dim], n, sample), device=root.device)
    together = root.detach().index_select(dim, rows)
    difference = float((together - alone.detach()).abs().max()) if together.numel() else 0.0
    if difference > 10 * tolerance * max(float(alone.detach().abs().max()), 1e-6):
        raise NotIsolated(
            f"the output of sample {sample} differs by {difference:.3g} when it is alone in the "
            "batch: samples leak into each other in the forward."
        )
    return cotangent.index_select(dim, rows)
