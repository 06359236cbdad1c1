"""`psac theory`: the paper's bounds as pictures, beside a truth that is known."""

from __future__ import annotations

from paper.cli.paper import RESULTS, Results, shown


def theory(results: Results = RESULTS) -> None:
    """Weights, what does not vanish in the bounds (Table 1), and bounds beside the truth."""
    from paper.experiments.figures import THEORY

    shown(THEORY.values(), results / "theory")
