"""Per-sample gradients of one backward: their norms, and what weighted sums need.

Contributions come in while backward runs.  When all uses of a parameter are there, its norms are
taken at once, so that what is no longer needed is freed while backward goes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from psac.gradients.contributions.base import Budget, Contribution, Dense, square_sum
from psac.gradients.contributions.cluster import Cluster, Joint
from psac.gradients.contributions.joined import joined
from psac.gradients.contributions.weights import Weights
from psac.gradients.groups import Groups
from psac.gradients.precision import in_double, without_autocast

# What gradients that are kept may add to the memory of a step: a share of the activations that it
# holds anyway.
BUDGET_SHARE = 0.3
MINIMAL_BUDGET = 2**20


class Measured:
    """Squared norms by parameter, and the contributions that sums are formed of."""

    def __init__(
        self,
        clusters: Sequence[Cluster],
        uses: Mapping[int, int],
        num_samples: int,
        activation_bytes: int = 0,
    ) -> None:
        """`uses` says how often each source was used; `activation_bytes` is a guess."""
        self.num_samples, self.activation_bytes = num_samples, 0
        self.budget = Budget(MINIMAL_BUDGET + int(BUDGET_SHARE * activation_bytes))
        self.joints: list[tuple[tuple[str, ...], Contribution | Joint]] = []
        self.squares: list[tuple[tuple[str, ...], Tensor]] = []
        self.methods: dict[str, str] = {}
        self._clusters = clusters
        self._of_source = {key: k for k, cluster in enumerate(clusters) for key in cluster.sources}
        self._waiting = [sum(uses.get(s, 0) for s in cluster.sources) for cluster in clusters]
        # where parameters are measured, and how often something is passed on to them
        self._of_parameter: dict[str, int] = {}
        if any(cluster.passes_on for cluster in clusters):
            for k, cluster in enumerate(clusters):
                self._of_parameter |= dict.fromkeys(cluster.parameters, k)
            for cluster in clusters:
                for name in cluster.parameters if cluster.passes_on else ():
                    self._waiting[self._of_parameter[name]] += 1
        self._parts: dict[int, list[Contribution]] = defaultdict(list)
        self._passed: dict[str, list[Contribution]] = defaultdict(list)

    @without_autocast
    def arrive(self, uses: Iterable[tuple[Tensor, Contribution]]) -> None:
        """One tap's output gradient is there."""
        with torch.no_grad():
            ready = []
            for source, part in uses:
                place = self._of_source.get(id(source))
                if place is None:
                    continue  # made of no parameter of the model
                self._parts[id(source)].append(part)
                self.activation_bytes += getattr(part, "nbytes", 0)
                self._waiting[place] -= 1
                if not self._waiting[place]:
                    ready.append(place)
            for place in ready:  # a weight comes before its bias, whose norms it takes on the way
                self._measure(self._clusters[place])

    def _measure(self, cluster: Cluster) -> None:
        parts = {key: self._parts.pop(key) for key in cluster.sources if key in self._parts}
        if cluster.passes_on:
            self._pass_on(cluster, parts)
            return
        passed = {
            name: self._passed.pop(name) for name in cluster.parameters if name in self._passed
        }
        if parts or passed:
            joint = cluster.measured(parts, passed, self.num_samples)
            self._add(cluster.parameters, joint)

    def _pass_on(self, cluster: Cluster, parts: Mapping[int, list[Contribution]]) -> None:
        for uses in parts.values():
            for name, gained in cluster.passed_on(joined(uses)).items():
                self._passed[name] += gained
        for name in cluster.parameters:
            place = self._of_parameter[name]
            self._waiting[place] -= 1
            if not self._waiting[place]:
                self._measure(self._clusters[place])

    def _add(self, names: tuple[str, ...], joint: Contribution | Joint) -> None:
        self.squares.append((names, joint.norms_squared(self.budget)))
        self.joints.append((names, joint))
        self.methods |= dict.fromkeys(names, joint.method)

    @without_autocast
    def finish(self) -> None:
        """Measures clusters some of whose uses never got a gradient."""
        with torch.no_grad():
            for cluster, waiting in zip(self._clusters, self._waiting, strict=True):
                if waiting:
                    self._measure(cluster)

    def rules(self, served: Mapping[int, Iterable[str]]) -> dict[str, tuple[str, ...]]:
        """By parameter: the rules that served its sources."""
        by_parameter: dict[str, dict[str, None]] = defaultdict(dict)
        for cluster in self._clusters:
            for name in cluster.parameters:
                for key in cluster.sources:
                    by_parameter[name] |= dict.fromkeys(served.get(key, ()))
        return {name: tuple(rules) for name, rules in by_parameter.items()}

    @classmethod
    def of_rows(cls, rows: Mapping[str, Tensor], num_samples: int) -> Measured:
        """From per-sample gradients that are there: name -> [n, shape of the parameter]."""
        measured = cls((), {}, num_samples)
        with torch.no_grad():
            for name, values in rows.items():
                squares = square_sum(in_double(values))  # of float32 they may overflow
                measured._add((name,), Dense(values, squares))
        return measured

    def norms_squared(self, groups: Groups) -> list[Tensor | None]:
        """By group; None for a group that no gradient reached."""
        parts: list[list[Tensor]] = [[] for _ in range(groups.count)]
        for names, norms in self.squares:
            parts[groups.of(names)].append(norms)
        return [sum(group[1:], group[0]) if group else None for group in parts]

    def floor(self) -> Tensor | None:
        """[n]: smaller norms are raised to this, because terms that large cancelled."""
        squares = self.budget.floor()
        return None if squares is None else squares.sqrt()

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
                of_group = by_group[groups.of(names)]
                if isinstance(joint, Joint):
                    sums.update(joint.weighted_sums(of_group))
                else:
                    sums[names[0]] = joint.weighted_sum(of_group)
        return sums
