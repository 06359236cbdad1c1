"""Figure 2: the weight of a sample by the norm of its gradient, and what it then contributes.

DP-PSAC and Auto-S at the r of the paper's figures, and the Auto-S whose largest weight is that of
DP-PSAC.  The paper says: Auto-S weighs a small gradient up to 1/r times, DP-PSAC about 1 times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paper import theory
from paper.figures.exhibit import Data, Exhibit, Folder
from paper.figures.theme import Theme, label, legend, line, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REGULARISERS = [0.01, 0.1]
LOWEST, HIGHEST, POINTS = -4, 1, 251


def compute(_: Folder) -> Data:
    norms = np.logspace(LOWEST, HIGHEST, POINTS)
    found = []
    for r in REGULARISERS:
        matched = float(theory.matched_regulariser(r))
        curves = {
            "psac": theory.weight(norms, r),
            "auto_s": theory.auto_s_weight(norms, r),
            "matched": theory.auto_s_weight(norms, matched),
        }
        found.append(
            {
                "r": r,
                "matched": matched,
                "largest": float(theory.largest_weight(r)),
                "weights": {rule: values.tolist() for rule, values in curves.items()},
            }
        )
    return {"norms": norms.tolist(), "curves": found}


def rows(data: Data) -> list[Data]:
    return [
        {"rule": rule, "r": curve["r"], "norm": norm, "weight": weight}
        for curve in data["curves"]
        for rule, weights in curve["weights"].items()
        for norm, weight in zip(data["norms"], weights, strict=True)
    ]


def title(rule: str, curve: Data) -> str:
    return {
        "psac": f"DP-PSAC, r = {curve['r']:g}",
        "auto_s": f"Auto-S, r = {curve['r']:g}",
        "matched": f"Auto-S, r = {curve['matched']:.3g}: same largest weight",
    }[rule]


def draw(data: Data, theme: Theme) -> Figure:
    figure, found = panels(theme, 2, 2, size=(5.2, 3.4), sharex=True)
    norms = np.array(data["norms"])
    for column, curve in enumerate(data["curves"]):
        above, below = found[column], found[2 + column]
        for rule, values in curve["weights"].items():
            weights = np.array(values)
            above.plot(norms, weights, **line(theme, rule), label=title(rule, curve))
            below.plot(norms, norms * weights, **line(theme, rule))
        above.set(xscale="log", yscale="log")
        below.set(xscale="log", ylim=(0, 1.04))
        label(above, theme, f"Weight, r = {curve['r']:g}", "", "weight / C")
        label(below, theme, "Contribution", "norm of the gradient", "norm x weight / C")
        legend(above, theme, loc="lower left")
    return figure


def caption(data: Data) -> str:
    text = []
    for curve in data["curves"]:
        smallest = curve["weights"]["auto_s"][0]
        text.append(
            f"At r = {curve['r']:g} Auto-S weighs the smallest gradient here {smallest:.4g} times "
            f"and DP-PSAC {curve['weights']['psac'][0]:.4g} times; DP-PSAC's largest weight is "
            f"{curve['largest']:.4g}, which Auto-S has at r = {curve['matched']:.4g}."
        )
    return (
        "Weight (above) and contribution (below) of a sample, with C = 1.\n\n"
        + " ".join(text)
        + "\n\n**Beside the paper.** Agrees: monotonic against not, near 1 for small gradients, "
        "the same for large ones. Added: the Auto-S of equal largest weight; beside it DP-PSAC "
        "weighs small gradients less and middle ones more."
    )


FIG2 = Exhibit(
    name="fig2",
    command="python -m paper fig2",
    title="Figure 2. Weights",
    settings={"r": REGULARISERS, "norms": [LOWEST, HIGHEST, POINTS]},
    compute=compute,
    rows=rows,
    draw=draw,
    caption=caption,
)
