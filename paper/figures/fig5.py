"""Figure 5: the "lazy region" of normalisation, on a logistic regression with one parameter.

10,000 samples each of N(1, 1) with label +1 and N(-1, 1) with label -1; the logit is theta + x, the
optimum at theta = 0.  Shown is the mean of the weighted gradients over theta.  The paper says:
Auto-V has regions without a gradient, and DP-PSAC is closer to the true gradient than DP-SGD and
Auto-S for all theta.  That depends on the scale, which is a matter of the learning rate, so there
are three views: as it is, DP-SGD divided by its C, and each rule at the scale that fits SGD best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from paper.figures.exhibit import Data, Exhibit, Folder
from paper.figures.theme import NAMES, Theme, label, legend, line, panels
from psac.clipping.rules import PSAC, Abadi, AutoS, AutoV, ClippingRule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES, SEED = 10_000, 5
BOUND, R = 0.1, 0.01
THETAS = np.round(np.linspace(-8, 8, 161), 10).tolist()
RULES: dict[str, ClippingRule] = {
    "abadi": Abadi(bound=BOUND),
    "auto_v": AutoV(),
    "auto_s": AutoS(r=R),
    "psac": PSAC(r=R),
}
VIEWS = {
    "raw": "As it is",
    "per_bound": "DP-SGD divided by C",
    "best_scale": "Each at the scale that fits SGD best",
}


def compute(_: Folder) -> Data:
    generator = torch.Generator().manual_seed(SEED)
    labels = torch.tensor([1.0, -1.0]).repeat_interleave(SAMPLES).double()
    inputs = labels + torch.randn(2 * SAMPLES, generator=generator, dtype=torch.float64)
    found: dict[str, list[float]] = {"sgd": [], **{rule: [] for rule in RULES}}
    for theta in THETAS:
        gradients = -labels * torch.sigmoid(-labels * (theta + inputs))
        found["sgd"].append(float(gradients.mean()))
        for name, rule in RULES.items():
            found[name].append(float((rule.weights(gradients.abs()) * gradients).mean()))
    return {"thetas": THETAS, "means": found}


def view(data: Data, name: str) -> dict[str, np.ndarray]:
    """The curves of one view."""
    curves = {rule: np.array(values) for rule, values in data["means"].items()}
    if name == "per_bound":
        curves["abadi"] = curves["abadi"] / BOUND
    if name == "best_scale":
        true = curves["sgd"]
        curves = {rule: fitted(values, true) for rule, values in curves.items()}
    return curves


def fitted(values: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The multiple of the values that is nearest to the truth."""
    square = float(values @ values)
    return values * (float(values @ true) / square) if square > 1e-18 else values


def distance(curves: dict[str, np.ndarray], rule: str) -> float:
    """The root mean square distance to SGD, over that of no gradient at all."""
    true = curves["sgd"]
    return float(np.linalg.norm(curves[rule] - true) / np.linalg.norm(true))


def where_closer(data: Data, name: str, rule: str) -> list[tuple[float, float]]:
    """The intervals of theta > 0 in which the rule is closer to SGD than DP-PSAC is."""
    curves, thetas = view(data, name), np.array(data["thetas"])
    own, other = (np.abs(curves[k] - curves["sgd"]) for k in ("psac", rule))
    closer = thetas[(thetas > 0.05) & (other < own)]
    parts = np.split(closer, np.flatnonzero(np.diff(closer) > 0.15) + 1)
    return [(float(part[0]), float(part[-1])) for part in parts if len(part)]


def _interval(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"at {low:g}" if low == high else f"from {low:g} to {high:g}"


def rows(data: Data) -> list[Data]:
    return [
        {"view": name, "rule": rule, "theta": theta, "mean": round(value, 10)}
        for name in VIEWS
        for rule, values in view(data, name).items()
        for theta, value in zip(data["thetas"], values.tolist(), strict=True)
    ]


def draw(data: Data, theme: Theme) -> Figure:
    figure, found = panels(theme, 3, size=(4.4, 3.8), sharex=True, sharey=True)
    for axes, (name, heading) in zip(found, VIEWS.items(), strict=True):
        for rule, values in view(data, name).items():
            axes.plot(data["thetas"], values, **line(theme, rule), label=NAMES[rule])
        label(axes, theme, heading, "theta", "mean weighted gradient" if axes is found[0] else "")
    legend(found[0], theme, loc="upper left")
    return figure


def caption(data: Data) -> str:
    table = ["| view | " + " | ".join(NAMES[rule] for rule in RULES) + " |", "|---" * 5 + "|"]
    for name, heading in VIEWS.items():
        curves = view(data, name)
        cells = " | ".join(f"{distance(curves, rule):.3f}" for rule in RULES)
        table.append(f"| {heading} | {cells} |")
    return (
        f"Mean weighted gradient over theta; {SAMPLES:,} samples of each label, seed {SEED}, "
        f"C = {BOUND} for DP-SGD, r = {R} for Auto-S and DP-PSAC.\n\n"
        "Distance of each curve to that of SGD, over the norm of the latter:\n\n"
        + "\n".join(table)
        + "\n\n**Beside the paper.** "
        + verdict(data)
    )


def verdict(data: Data) -> str:
    """Where "closer to the original gradient under all theta" holds."""
    found = []
    for name, heading in VIEWS.items():
        closer = {rule: where_closer(data, name, rule) for rule in ("abadi", "auto_s")}
        said = [
            f"{NAMES[rule]} is closer for theta {', '.join(map(_interval, parts))}"
            for rule, parts in closer.items()
            if parts
        ]
        holds = "; ".join(said) or "holds for all theta that were tried"
        found.append(f"*{heading}*: {holds}.")
    return (
        "Agrees: Auto-V has no gradient anywhere, Auto-S little near 0, DP-PSAC nearly SGD's. The "
        'claim "closer than DP-SGD and Auto-S under all theta", for theta > 0: ' + " ".join(found)
    )


FIG5 = Exhibit(
    name="fig5",
    command="python -m paper fig5",
    title="Figure 5. The lazy region",
    settings={"samples": SAMPLES, "seed": SEED, "bound": BOUND, "r": R, "thetas": THETAS},
    compute=compute,
    rows=rows,
    draw=draw,
    caption=caption,
)
