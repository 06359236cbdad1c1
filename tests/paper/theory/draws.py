"""What the property tests draw: constants of the assumptions, and samples that satisfy them."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st

from paper.theory import Assumptions, Schedule


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers from 10^low to 10^high."""
    return st.floats(low, high).map(lambda power: 10.0**power)


assumptions = st.builds(
    Assumptions,
    L0=logarithmic(-2, 2),
    L1=st.one_of(st.just(0.0), logarithmic(-2, 2)),
    tau0=logarithmic(-3, 2),
    tau1=st.floats(0, 0.95),
)
schedules = st.builds(
    Schedule,
    num_parameters=logarithmic(0, 7),
    noise_multiplier=logarithmic(-1, 1),
    batch_size=logarithmic(0, 4),
    num_steps=logarithmic(0, 7),
)
regularisers = logarithmic(-5, 0)


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Samples of two kinds in the plane, with mean (G, 0): a share p of `norms[0]`, the rest."""

    G: float
    shares: np.ndarray
    along: np.ndarray  # the part of each kind's gradient along grad f
    norms: np.ndarray


def gradients(assumed: Assumptions, draw, *, far: bool) -> Gradients:
    """Samples within tau0 + tau1 G of their mean, which is beyond the edge or within it."""
    factor = draw(logarithmic(0, 3)) if far else draw(st.floats(0, 0.999))
    G = float(assumed.edge) * factor
    radius = float(assumed.tau0 + assumed.tau1 * G) * draw(st.floats(0, 1))
    share, angle = draw(st.floats(0, 0.5)), draw(st.floats(0, np.pi))
    lengths = radius * np.array([1.0, -share / (1 - share)])
    along, across = G + lengths * np.cos(angle), lengths * np.sin(angle)
    return Gradients(G, np.array([share, 1 - share]), along, np.hypot(along, across))
