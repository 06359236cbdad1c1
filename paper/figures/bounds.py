"""Table 1 as a picture: what does not vanish in the bound of DP-PSAC and of Auto-S, over r.

Both by the proof of the paper (`paper.theory.auto_s` repeats it for Auto-S): at equal r, and at
equal largest weight, where Auto-S has 2 sqrt(r) - r.  The paper says: r^-1/2 against r^-1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paper import theory
from paper.figures.exhibit import Data, Exhibit, Folder
from paper.figures.theme import Theme, label, legend, level, line, panels
from paper.theory import Assumptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TAU0 = [0.1, 1.0, 10.0]
TAU1 = 0.2
LOWEST, POINTS = -6, 121


def compute(_: Folder) -> Data:
    r = np.logspace(LOWEST, 0, POINTS)
    found = []
    for tau0 in TAU0:
        assumed = Assumptions(L0=1, L1=1, tau0=tau0, tau1=TAU1)  # L0 and L1 are not used
        matched = theory.auto_s_non_vanishing_bound(assumed, theory.matched_regulariser(r))
        found.append(
            {
                "tau0": tau0,
                "edge": float(assumed.edge),
                "psac": theory.non_vanishing_bound(assumed, r).tolist(),
                "auto_s": theory.auto_s_non_vanishing_bound(assumed, r).tolist(),
                "matched": matched.tolist(),
            }
        )
    return {"r": r.tolist(), "tau1": TAU1, "curves": found}


def rows(data: Data) -> list[Data]:
    return [
        {"tau0": curve["tau0"], "r": r, "rule": rule, "bound": bound}
        for curve in data["curves"]
        for rule in ("psac", "auto_s", "matched")
        for r, bound in zip(data["r"], curve[rule], strict=True)
    ]


def draw(data: Data, theme: Theme) -> Figure:
    figure, found = panels(theme, len(data["curves"]), size=(4.5, 3.9))
    names = {
        "psac": "DP-PSAC",
        "auto_s": "Auto-S, same r",
        "matched": "Auto-S, same largest weight",
    }
    for axes, curve in zip(found, data["curves"], strict=True):
        for rule, name in names.items():
            axes.plot(data["r"], curve[rule], **line(theme, rule), label=name)
        level(axes, theme, curve["edge"], "floor of the simple bound")
        axes.set(xscale="log", yscale="log")
        y = "non-vanishing bound" if axes is found[0] else ""
        label(axes, theme, f"tau0 = {curve['tau0']:g}, tau1 = {data['tau1']:g}", "r", y)
    legend(found[0], theme, loc="upper right")
    return figure


def crossing(data: Data, curve: Data) -> float | None:
    """The largest r up to which DP-PSAC has the lower bound than Auto-S of the same r."""
    lower = [r for r, a, b in zip(data["r"], curve["psac"], curve["auto_s"], strict=True) if a < b]
    return max(lower, default=None)


def caption(data: Data) -> str:
    return (
        "What is left of the bound on the gradient for any number of steps, over r, by the proof "
        "of the paper's Theorem 2 for both rules. Dotted: tau0 / (1 - tau1), what the simple "
        "bound leaves for any rule and any r. Both bounds hold, so that where a curve is above the "
        "dotted line, the line is the better one.\n\n"
        "**Beside the paper.** " + verdict(data)
    )


def verdict(data: Data) -> str:
    crossings = []
    for curve in data["curves"]:
        found = crossing(data, curve)
        up_to = "for no r here" if found is None else f"up to r = {found:.3g}"
        crossings.append(f"{up_to} at tau0 = {curve['tau0']:g}")
    below = all(a < b for c in data["curves"] for a, b in zip(c["matched"], c["psac"], strict=True))
    return (
        "Agrees: r^-1/2 against r^-1 at equal r; DP-PSAC's bound is the lower one "
        f"{', '.join(crossings)}. The caveat: at equal largest weight Auto-S has the "
        + ("lower bound for every r and tau0 here" if below else "lower bound for some r only")
        + ", and the shorter proof of `paper.theory.simple` has no term in 1/r for either."
    )


BOUNDS = Exhibit(
    name="bounds",
    title="Table 1 as a picture: the bound that does not vanish",
    command="python -m paper theory",
    settings={"tau0": TAU0, "tau1": TAU1, "r": [LOWEST, 0, POINTS]},
    compute=compute,
    rows=rows,
    draw=draw,
    caption=caption,
)
