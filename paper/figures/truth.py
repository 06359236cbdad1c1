"""The bounds of the theory beside the truth, on a problem whose constants are known (skewed.py).

Left: the smallest gradient that training meets in T steps, with Theorem 2's bound where it holds,
and the simple bound.  Right: the gradient at which training comes to rest, which is what cannot
vanish, with the bounds on it, over r.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from paper import theory
from paper.figures.exhibit import Data, Exhibit, Folder
from paper.figures.skewed import Skewed
from paper.figures.theme import Theme, label, legend, level, line, panels
from paper.theory import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROBLEM = Skewed()
R = 0.1
START = 5.0
PARAMETERS, NOISE, BATCH = 160, 1.0, 4  # much noise: else Theorem 2 asks for too many steps
STEPS = [100, 330, 1000, 3300, 10_000, 33_000, 100_000, 330_000]
REPETITIONS, SEED = 8, 6
REGULARISERS = np.logspace(-4, 0, 33).tolist()
SETTINGS = {
    "problem": dataclasses.asdict(PROBLEM),
    "r": R,
    "start": START,
    "parameters": PARAMETERS,
    "noise_multiplier": NOISE,
    "batch_size": BATCH,
    "repetitions": REPETITIONS,
    "seed": SEED,
    "steps": STEPS,
    "regularisers": REGULARISERS,
}
BELOW: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}  # of a legend
VARIED = ("steps", "regularisers")  # a run has its own number of steps, and needs no others


def compute(folder: Folder) -> Data:
    assumed = PROBLEM.assumptions
    schedule = Schedule(
        num_parameters=PARAMETERS, noise_multiplier=NOISE, batch_size=BATCH, num_steps=1
    )
    runs = [
        folder.run(f"steps{count}", asked(count), lambda _, count=count: run(count))
        for count in STEPS
    ]
    rests = []
    for r in REGULARISERS:
        matched = float(theory.matched_regulariser(r))
        rests.append(
            {
                "r": r,
                "psac": PROBLEM.resting_gradient(lambda s, r=r: theory.weight(s, r)),
                "auto_s": PROBLEM.resting_gradient(lambda s, r=r: theory.auto_s_weight(s, r)),
                "matched": PROBLEM.resting_gradient(
                    lambda s, r=matched: theory.auto_s_weight(s, r)
                ),
                "psac_bound": float(theory.non_vanishing_bound(assumed, r)),
                "auto_s_bound": float(theory.auto_s_non_vanishing_bound(assumed, r)),
            }
        )
    return {
        "smallest_num_steps": float(theory.smallest_num_steps(assumed, schedule, R)),
        "edge": float(assumed.edge),
        "runs": runs,
        "rests": rests,
    }


def asked(num_steps: int) -> Data:
    return {"steps": num_steps, **{k: v for k, v in SETTINGS.items() if k not in VARIED}}


def run(num_steps: int) -> Data:
    """Training by the learning rate of Theorem 2, with both bounds."""
    assumed, descent = PROBLEM.assumptions, START**2 / (2 * PROBLEM.L0)
    schedule = Schedule(
        num_parameters=PARAMETERS, noise_multiplier=NOISE, batch_size=BATCH, num_steps=num_steps
    )
    eta = float(theory.learning_rate(assumed, schedule))
    far = theory.descent_far(assumed, R)
    found = PROBLEM.smallest_gradient(
        lambda norms: theory.weight(norms, R),
        schedule,
        eta,
        start=START,
        repetitions=REPETITIONS,
        seed=SEED,
    )
    simple = theory.simple_bound(
        assumed, schedule, descent_far=far, descent=descent, learning_rate=eta
    )
    return {
        "steps": num_steps,
        "learning_rate": eta,
        "smallest": float(found.mean()),
        "deviation": float(found.std(ddof=1)),
        "theorem_2": float(theory.convergence_bound(assumed, schedule, R, descent)),
        "simple": float(simple),
    }


def rows(data: Data) -> list[Data]:
    """A line for each number: first over steps, then over r."""
    return [
        {"over": over, "at": found[over], "what": what, "value": value}
        for over, part in (("steps", "runs"), ("r", "rests"))
        for found in data[part]
        for what, value in found.items()
        if what not in (over, "asked")
    ]


def draw(data: Data, theme: Theme) -> Figure:
    figure, found = panels(theme, 2, size=(5.8, 5.0))
    _over_steps(found[0], theme, data)
    _over_r(found[1], theme, data)
    return figure


def _over_steps(axes: Axes, theme: Theme, data: Data) -> None:
    steps = [run["steps"] for run in data["runs"]]
    covered = [run for run in data["runs"] if run["steps"] >= data["smallest_num_steps"]]
    axes.plot(
        steps,
        [run["theorem_2"] for run in data["runs"]],
        color=theme.colours["auto_v"],
        linestyle=":",
        linewidth=1.6,
        label="Theorem 2 before it holds",
    )
    axes.plot(
        [run["steps"] for run in covered],
        [run["theorem_2"] for run in covered],
        color=theme.colours["auto_v"],
        linewidth=2.2,
        label="Theorem 2",
    )
    axes.plot(
        steps,
        [run["simple"] for run in data["runs"]],
        **line(theme, "abadi"),
        label="the simple bound",
    )
    axes.plot(
        steps,
        [run["smallest"] for run in data["runs"]],
        **line(theme, "psac"),
        marker="o",
        markersize=4,
        label="measured",
    )
    axes.set(xscale="log", yscale="log")
    label(axes, theme, f"DP-PSAC, r = {R:g}", "steps T", "smallest |grad f| in T steps")
    legend(axes, theme, **BELOW)


def _over_r(axes: Axes, theme: Theme, data: Data) -> None:
    r = [rest["r"] for rest in data["rests"]]
    names = {
        "psac": "DP-PSAC, at rest",
        "auto_s": "Auto-S, at rest",
        "matched": "Auto-S of equal largest weight, at rest",
    }
    for rule, name in names.items():
        axes.plot(r, [rest[rule] for rest in data["rests"]], **line(theme, rule), label=name)
    for rule, name in (("psac", "bound for DP-PSAC"), ("auto_s", "bound for Auto-S")):
        style: dict[str, Any] = {**line(theme, rule), "linewidth": 1.2, "alpha": 0.75}
        axes.plot(r, [rest[f"{rule}_bound"] for rest in data["rests"]], **style, label=name)
    level(axes, theme, data["edge"], "simple bound, any rule")
    axes.set(xscale="log", yscale="log")
    label(axes, theme, "What does not vanish", "r", "|grad f|")
    legend(axes, theme, **BELOW)


def caption(data: Data) -> str:
    last = data["runs"][-1]
    tenth = min(data["rests"], key=lambda rest: abs(rest["r"] - R))
    return (
        f"f = |x|^2 / 2 in {PARAMETERS} dimensions with two kinds of samples, tau0 = "
        f"{PROBLEM.height:g}, tau1 = L1 = 0; noise multiplier {NOISE:g}, B = {BATCH}, start at "
        f"|grad f| = {START:g}, Theorem 2's learning rate, mean of {REPETITIONS} repetitions, seed "
        f"{SEED}. Theorem 2 holds from T = {data['smallest_num_steps']:,.0f} on.\n\n"
        f"After {last['steps']:,} steps the smallest gradient was {last['smallest']:.3g}; "
        f"Theorem 2 says at most {last['theorem_2']:.3g}, the simple bound {last['simple']:.3g}. "
        f"At rest with r = {tenth['r']:.2g} the gradient is {tenth['psac']:.3g} for DP-PSAC, "
        f"{tenth['auto_s']:.3g} for Auto-S and {tenth['matched']:.3g} for the Auto-S of equal "
        f"largest weight, where the paper's proof gives {tenth['psac_bound']:.3g} and "
        f"{tenth['auto_s_bound']:.3g}, and the simple bound {data['edge']:.3g}.\n\n**Beside the "
        "paper.** The bounds hold and are loose. The gradient at rest does not grow without limit "
        "as r falls, as the paper's bounds do: it stays below tau0 / (1 - tau1)."
    )


TRUTH = Exhibit(
    name="truth",
    title="Bounds beside the truth",
    command="python -m paper theory",
    settings=SETTINGS,
    compute=compute,
    rows=rows,
    draw=draw,
    caption=caption,
)
