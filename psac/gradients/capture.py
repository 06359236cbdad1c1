"""One backward that leaves per-sample information instead of weight gradients.

`capture` runs autograd from the roots only as far as the taps need it, so the non-private weight
gradient is never computed. When the output gradients of a tap arrive, its rule turns them into
contributions; clusters that are complete are measured at once, so that what is no longer needed is
freed while backward goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import GraphExecGroup

from .cluster import Across, Alone, Joint
from .contributions import Budget, Contribution, Dense
from .errors import CannotAssign, OutsideTheTape
from .graph import Graph
from .groups import Groups
from .moves import refuse_moves
from .plan import NOTHING, Cluster, Plan, Tap
from .precision import without_autocast
from .rules import contributions
from .rules.arrival import Arrival
from .weights import Weights

# What gradients that are kept may add to the memory of a step: a share of the activations that it
# holds anyway.
BUDGET_SHARE = 0.3
MINIMAL_BUDGET = 2**20


class Captured:
    """Per-sample squared norms of one backward, and what is needed to form weighted sums."""

    def __init__(self, graph: Graph, plan: Plan, num_samples: int, at_once: bool = True):
        self.graph, self.plan, self.num_samples, self.at_once = graph, plan, num_samples, at_once
        self.found: dict[tuple[int, int], Contribution] = {}
        self.joints: list[tuple[tuple[str, ...], Alone | Joint | Across]] = []
        self.measured: list[tuple[tuple[str, ...], Tensor]] = []  # squared norms
        self.foreign_gradients: dict[int, Tensor] = {}
        allowed = MINIMAL_BUDGET + int(BUDGET_SHARE * plan.activation_bytes)
        self.budget = Budget(allowed)
        self.activation_bytes = 0
        self._reading = GraphExecGroup()
        self._arrived: set[int] = set()
        self._waiting = [len(cluster.uses) for cluster in plan.clusters]

    def arrive(self, tap: Tap, grads: Sequence[Tensor | None]) -> None:
        """Called when the output gradients of a tap are there; None stands for zero."""
        number = tap.number
        if number in self._arrived or all(grad is None for grad in grads):
            return  # the generic rule runs the node again, hooks and all
        self._arrived.add(number)
        for layout, grad, positions in zip(tap.layouts, grads, tap.positions, strict=True):
            if grad is None:
                continue
            if layout is None:
                if bool((grad.abs() >= NOTHING).any()):
                    raise CannotAssign(
                        "a gradient arrived where no probe had any, so its rows are not known"
                    )
                return
            if grad.shape[layout.dim] != positions * self.num_samples:
                raise CannotAssign(
                    "the number of rows of a sample changes without the shapes of the inputs"
                )
        arrival = Arrival(self.graph, tap, grads, self.num_samples, self._reading)
        for k, contribution in contributions(arrival).items():
            use = number, k
            self.found[use] = contribution
            self.activation_bytes += getattr(contribution, "nbytes", 0)
            place = self.plan.cluster_of[use]
            self._waiting[place] -= 1
            if self.at_once and not self._waiting[place]:
                self._measure(self.plan.clusters[place])

    def _measure(self, cluster: Cluster) -> None:
        uses = {use: self.found.pop(use) for use in cluster.uses if use in self.found}
        if not uses:
            return
        if cluster.alone is not None:
            (part,) = uses.values()
            joint: Alone | Joint = Alone(cluster, part)
        else:
            joint = Joint(self.graph, cluster, uses, self.num_samples)
        self._add(joint, self.plan, cluster.parameters)

    def _add(self, joint: Alone | Joint | Across, plan: Plan, names: tuple[str, ...]) -> None:
        self.measured.append((names, joint.norms_squared(self.budget)))
        plan.methods[names] = joint.method
        self.joints.append((names, joint))

    def norms_squared(self, groups: Groups) -> list[Tensor | None]:
        return add_up(self.measured, groups)

    def floor(self) -> Tensor | None:
        """[n]: a smaller norm is not believed, for all the terms that had to cancel."""
        found = self.budget.floor()
        return None if found is None else found.sqrt()

    @without_autocast
    def join(self, others: Sequence[Captured]) -> None:
        """Measures this and other unmeasured captures as one.

        Gradients of the same sample add up.
        """
        groups: list[tuple[set[str], list[Joint]]] = []
        for captured in (self, *others):
            for cluster in captured.plan.clusters:
                uses = {
                    use: captured.found.pop(use) for use in cluster.uses if use in captured.found
                }
                if not uses:
                    continue
                names = set(cluster.parameters)
                joints = [Joint(captured.graph, cluster, uses, self.num_samples)]
                for group in [g for g in groups if g[0] & names]:
                    names, joints = names | group[0], group[1] + joints
                    groups.remove(group)
                groups.append((names, joints))
        with torch.no_grad():
            for names, joints in groups:
                joint = joints[0] if len(joints) == 1 else Across(joints)
                self._add(joint, self.plan, tuple(sorted(names)))

    def finish(self) -> None:
        """Measures clusters some of whose uses never got a gradient."""
        self.plan.activation_bytes = max(self.plan.activation_bytes, self.activation_bytes)
        for cluster, waiting in zip(self.plan.clusters, self._waiting, strict=True):
            if self.at_once and waiting:
                self._measure(cluster)

    def zero_samples(self, samples: Tensor) -> None:
        for _, joint in self.joints:
            joint.zero_samples(samples)

    @without_autocast
    def weighted_sums(self, weights: Sequence[Tensor], groups: Groups) -> dict[str, Tensor]:
        """Sum over samples of weights[group][n] * gradient[n], by parameter.

        Parameters without gradient are left out. Consumes what was captured, so that memory is
        freed while sums are formed.
        """
        sums: dict[str, Tensor] = {}
        self.budget.forget()
        of_all = len(weights) == 1
        by_group = [Weights(values, self.activation_bytes, of_all) for values in weights]
        with torch.no_grad():
            while self.joints:
                names, joint = self.joints.pop(0)
                sums.update(joint.weighted_sums(by_group[groups.of(names)]))
        return sums


@torch.no_grad()
@without_autocast
def capture(
    graph: Graph,
    plan: Plan,
    roots: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    num_samples: int,
    at_once: bool = True,
) -> Captured:
    """Backward from `roots` with the gradients `cotangents`, captured at the plan's taps.

    With `at_once=False` nothing is measured until `Captured.join`.
    """
    refuse_moves(graph, plan.moves, num_samples)
    captured = Captured(graph, plan, num_samples, at_once)
    terminal = [tap for tap in plan.taps if tap.terminal]
    handles = [
        graph.nodes[tap.number].register_prehook(lambda grads, tap=tap: captured.arrive(tap, grads))
        for tap in plan.taps
        if not tap.terminal
    ]
    ends = [(tap.number, k) for tap in terminal for k in range(len(tap.layouts))]
    leaves = [(number, 0) for number in graph.foreign]
    try:
        grads = gradients(graph, roots, cotangents, ends + leaves, retain_graph=False)
    finally:
        for handle in handles:
            handle.remove()
    for tap in terminal:
        captured.arrive(tap, [grads.get((tap.number, k)) for k in range(len(tap.layouts))])
    captured.finish()
    captured.foreign_gradients = {
        number: grads[number, 0] for number, _ in leaves if (number, 0) in grads
    }
    return captured


def gradients(
    graph: Graph, roots, cotangents, edges, retain_graph: bool
) -> dict[tuple[int, int], Tensor]:
    """Gradients at the given edges, those that get any."""
    if not edges or not roots:
        return {}
    try:
        found = torch.autograd.grad(
            roots,
            [graph.edge(edge) for edge in edges],
            cotangents,
            retain_graph=retain_graph,
            allow_unused=True,
        )
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        raise OutsideTheTape(
            "reentrant activation checkpointing hides its parameters from the graph. "
            "Use checkpoint(use_reentrant=False)."
        ) from None
    pairs = zip(edges, found, strict=True)
    return {e: g.to_dense() if g.is_sparse else g for e, g in pairs if g is not None}


def capture_single(
    graph: Graph, roots: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
    """The gradient of a batch of one: plain autograd, by parameter and by foreign leaf."""
    edges = [(number, 0) for number in (*graph.parameters, *graph.foreign)]
    grads = gradients(graph, roots, cotangents, edges, retain_graph=False)
    private = {graph.parameters[n]: grad for (n, _), grad in grads.items() if n in graph.parameters}
    return private, {n: grad for (n, _), grad in grads.items() if n not in graph.parameters}


class Rows:
    """Per-sample gradients by parameter, formed one by one.

    From the loop over samples, or from a batch of one.
    """

    def __init__(self, rows: dict[str, Tensor], num_samples: int):
        self.rows = {name: Dense(value) for name, value in rows.items()}
        self.num_samples = num_samples
        self.foreign_gradients: dict[int, Tensor] = {}

    @without_autocast
    def norms_squared(self, groups: Groups) -> list[Tensor | None]:
        return add_up(
            [((name,), row.norms_squared(Budget(0))) for name, row in self.rows.items()], groups
        )

    def floor(self) -> Tensor | None:
        """What is added is what was measured."""
        return None

    def zero_samples(self, samples: Tensor) -> None:
        for row in self.rows.values():
            row.zero_samples(samples)

    @without_autocast
    def weighted_sums(self, weights: Sequence[Tensor], groups: Groups) -> dict[str, Tensor]:
        return {
            name: row.weighted_sum(Weights(weights[groups.of((name,))]))
            for name, row in self.rows.items()
        }


def add_up(
    measured: Sequence[tuple[tuple[str, ...], Tensor]], groups: Groups
) -> list[Tensor | None]:
    """Squared norms by group; None for a group that no gradient reached."""
    parts: list[list[Tensor]] = [[] for _ in range(groups.count)]
    for names, norms in measured:
        parts[groups.of(names)].append(norms)
    return [sum(group[1:], group[0]) if group else None for group in parts]
