"""The exhibits by name.  To add one: a file that makes its `Exhibit`, and a line here."""

from __future__ import annotations

import dataclasses

from psac.experiments.bounds import BOUNDS
from psac.experiments.exhibit import Exhibit
from psac.experiments.fig1 import FIG1
from psac.experiments.fig2 import FIG2
from psac.experiments.fig3 import FIG3
from psac.experiments.fig4 import FIG4
from psac.experiments.fig5 import FIG5
from psac.experiments.fig6 import FIG6
from psac.experiments.truth import TRUTH

FIGURES: dict[str, Exhibit] = {e.name: e for e in (FIG1, FIG2, FIG3, FIG4, FIG5, FIG6)}
WEIGHTS = dataclasses.replace(FIG2, name="weights", title="Weights", command="psac theory")
THEORY: dict[str, Exhibit] = {e.name: e for e in (WEIGHTS, BOUNDS, TRUTH)}
EXHIBITS = {**FIGURES, **THEORY}
