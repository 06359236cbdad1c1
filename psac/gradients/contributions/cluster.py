"""Which tensors of parameters are measured together.

The per-sample gradient of a parameter is the sum of what arrives through all its uses: a tied
embedding and head, a cell that runs T times, two forwards in one backward, three slices of one
packed weight.  A source is a tensor that records were computed from.

    the parameter itself                what arrives is joined (joined.py)
    computed by known operations        what arrives is passed on to the parameters (derived.py)
    anything else                       sources and parameters are measured together (joint.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from psac.gradients.contributions.base import Contribution
from psac.gradients.contributions.derived import fits, pulled_back
from psac.gradients.contributions.graph import Edge, Graph, trace
from psac.gradients.contributions.joined import joined
from psac.gradients.contributions.joint import Formed, Joint
from psac.gradients.contributions.shared import Unstructured


@dataclass(frozen=True)
class Cluster:
    """Parameters whose per-sample gradients are one sum over `sources`."""

    parameters: tuple[str, ...]
    sources: tuple[int, ...]  # by id
    graph: Graph | None = None  # from sources to parameters, unless each source is the parameter
    edges: Mapping[int, Edge] | None = None  # where sources are in it
    passes_on: bool = False  # to the clusters of its parameters

    def measured(
        self,
        parts: Mapping[int, list[Contribution]],
        passed: Mapping[str, list[Contribution]],
        num_samples: int,
    ) -> Contribution | Joint:
        """Of one parameter its contribution, from what arrived at sources and was passed on."""
        if self.graph is None:
            uses = [p for uses in (*parts.values(), *passed.values()) for p in uses]
            return uses[0] if len(uses) == 1 else joined(uses)
        assert self.edges is not None
        by_edge: dict[Edge, list[Contribution]] = {}
        for source, uses in parts.items():
            by_edge.setdefault(self.edges[source], []).extend(uses)
        for name, uses in passed.items():
            by_edge.setdefault((self.graph.leaves[name], 0), []).extend(uses)
        return Joint(self.graph, self.parameters, by_edge, num_samples)

    def passed_on(self, part: Contribution) -> dict[str, list[Contribution]]:
        """By parameter: what a source that is computed from them hands them."""
        assert self.graph is not None
        assert self.edges is not None
        (edge,) = self.edges.values()
        try:
            return pulled_back(self.graph, edge, part)
        except Unstructured:
            joint = Joint(self.graph, self.parameters, {edge: [part]}, part.num_samples)
            return {name: [Formed(joint, name)] for name in self.parameters}


def clusters_of(sources: Mapping[int, Tensor], names: Mapping[int, str]) -> list[Cluster]:
    """The sources by the parameters that they are made of.

    `names` maps id(parameter) to its name; a source without any is nobody's.  A cluster that passes
    on comes before those of its parameters.
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
    passing, together = [], []
    reached = {key: below[edge[0]] for key, edge in edges.items()}
    is_real = not any(graph.nodes[k].variable.is_complex() for k in graph.parameters)
    for key, edge in edges.items():
        if reached[key] and is_real and fits(graph, edge):
            parameters = tuple(sorted(reached[key]))
            passing.append(Cluster(parameters, (key,), graph, {key: edge}, passes_on=True))
        elif reached[key]:
            together.append((set(reached[key]), [key]))
    ids = {name: key for key, name in names.items()}
    passed = [ids[name] for cluster in passing for name in cluster.parameters]
    own = [key for key in sources if key in names]
    together += [({names[key]}, [key]) for key in dict.fromkeys([*own, *passed])]
    return [*passing, *(cluster_of(graph, edges, names, *group) for group in merged(together))]


def merged(groups: list[tuple[set[str], list[int]]]) -> list[tuple[set[str], list[int]]]:
    """Groups that share a parameter become one."""
    result: list[tuple[set[str], list[int]]] = []
    for parameters, members in groups:
        for group in [g for g in result if g[0] & parameters]:
            parameters, members = parameters | group[0], group[1] + members
            result.remove(group)
        result.append((parameters, members))
    return result


def cluster_of(
    graph: Graph,
    edges: Mapping[int, Edge],
    names: Mapping[int, str],
    parameters: set[str],
    members: list[int],
) -> Cluster:
    ordered, sources = tuple(sorted(parameters)), tuple(members)
    if not any(key in edges for key in members):
        return Cluster(ordered, sources)
    places = {key: edges[key] if key in edges else (graph.leaves[names[key]], 0) for key in members}
    return Cluster(ordered, sources, graph, places)
