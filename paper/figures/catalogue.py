"""The exhibits by name.  To add one: a file that makes its `Exhibit`, and a line here."""

from __future__ import annotations

import dataclasses

from paper.figures.bounds import BOUNDS
from paper.figures.exhibit import Exhibit
from paper.figures.fig1 import FIG1
from paper.figures.fig2 import FIG2
from paper.figures.fig3 import FIG3
from paper.figures.fig4 import FIG4
from paper.figures.fig5 import FIG5
from paper.figures.fig6 import FIG6
from paper.figures.truth import TRUTH

FIGURES: dict[str, Exhibit] = {e.name: e for e in (FIG1, FIG2, FIG3, FIG4, FIG5, FIG6)}
WEIGHTS = dataclasses.replace(FIG2, name="weights", title="Weights", command=BOUNDS.command)
THEORY: dict[str, Exhibit] = {e.name: e for e in (WEIGHTS, BOUNDS, TRUTH)}
EXHIBITS = {**FIGURES, **THEORY}
