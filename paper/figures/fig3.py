"""Figure 3: how close the weighted mean of a batch is to its true mean, as a histogram of cosines.

Five runs of DP-PSAC, of Auto-S and of the Auto-S of equal largest weight on Fashion-MNIST, measured
every ten iterations.  At each of them every rule of `RULES` is tried on the same gradients, so that
rules can also be compared where nothing but the rule differs.  The cosine is taken before the
noise, as in the paper, and after it: what the optimizer gets is the noisy one.  The paper says:
DP-PSAC has more of the large cosines.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paper.figures.exhibit import Data, Exhibit, Folder
from paper.figures.observed import calibrated, observed
from paper.figures.sample_gradients import cosines, gradients_of
from paper.figures.theme import Theme, label, panels
from paper.result_files import settings_of
from psac.app.reporting.statistics import paired, welch
from psac.app.training.shipped import load_recipe
from psac.app.training.splits import load_splits
from psac.clipping.rules import PSAC, Abadi, AutoS, ClippingRule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCHEDULE = {"epsilon": 3.0, "delta": 1e-5, "epochs": 5}
SEEDS = [1, 2, 3, 4, 5]
EVERY = 10
R = 0.1
MATCHED = 2 * math.sqrt(R) - R  # the Auto-S whose largest weight is that of PSAC with R
# What trains: the rule and its r.  The paper has the first two.
TRAINED = {"psac": ("psac", R), "auto_s": ("auto_s", R), "auto_s matched": ("auto_s", MATCHED)}
# By the median of the batch's norms, which the last one takes as its scale: for analysis only.
RULES: dict[str, Callable[[float], ClippingRule]] = {
    "psac": lambda _: PSAC(r=R),
    "auto_s": lambda _: AutoS(r=R),
    "auto_s matched": lambda _: AutoS(r=MATCHED),
    "psac 0.01": lambda _: PSAC(r=0.01),
    "auto_s 0.01": lambda _: AutoS(r=0.01),
    "abadi": lambda _: Abadi(bound=0.1),
    "psac at median": lambda median: PSAC(r=R, scale=median),
}
TITLES = {
    "psac": f"DP-PSAC, r = {R:g}",
    "auto_s": f"Auto-S, r = {R:g}",
    "auto_s matched": f"Auto-S, r = {MATCHED:.2g}",
    "psac 0.01": "DP-PSAC, r = 0.01",
    "auto_s 0.01": "Auto-S, r = 0.01",
    "abadi": "DP-SGD, C = 0.1",
    "psac at median": f"DP-PSAC, r = {R:g}, scale = median",
}
COLOURS = {rule: "matched" if rule == "auto_s matched" else rule.split()[0] for rule in RULES}


def compute(folder: Folder) -> Data:
    recipe = load_recipe("fashion-mnist-cnn", seed=SEEDS[0], **SCHEDULE)
    splits = load_splits(recipe)
    recipe = calibrated(recipe, splits)
    runs = []
    for name, (rule, r) in TRAINED.items():
        for seed in SEEDS:
            asked = dataclasses.replace(recipe, rule=rule, r=r, seed=seed)
            run = folder.run(
                f"{name.replace(' ', '-')}-seed{seed}",
                {"recipe": settings_of(asked), "every": EVERY, "rules": [*RULES]},
                lambda path, asked=asked: observed(
                    asked, splits, path, measure=measure, every=EVERY
                ),
            )
            runs.append({"rule": name, "seed": seed, **run})
    return {"runs": runs}


def measure(model: nn.Module, inputs: Tensor, labels: Tensor, noise_multiplier: float) -> Data:
    """For each rule, the cosine to the true mean before and after noise."""
    gradients_np = gradients_of(model, inputs, labels)
    norms = gradients_np.norm(dim=1)
    median = float(norms.median())
    rules = [make(median) for make in RULES.values()]
    sums_rp = torch.stack([rule.weights(norms) for rule in rules]) @ gradients_np
    # One draw of noise for all rules, which is another in each step.
    generator = torch.Generator().manual_seed(int(norms.double().sum() * 1e6) % 2**31)
    noise_p = torch.randn(sums_rp.shape[1], generator=generator) * noise_multiplier
    bounds_r = torch.tensor([rule.bound for rule in rules])
    true_p = gradients_np.mean(0)
    return {
        "median_norm": median,
        "cosine": dict(zip(RULES, cosines(sums_rp, true_p).tolist(), strict=True)),
        "noisy": dict(
            zip(RULES, cosines(sums_rp + bounds_r[:, None] * noise_p, true_p).tolist(), strict=True)
        ),
    }


def pooled(data: Data, kind: str, rule: str, trained: Collection[str] = TRAINED) -> list[float]:
    """All cosines of a rule, in the runs that these rules trained."""
    return [
        seen[kind][rule]
        for run in data["runs"]
        if run["rule"] in trained
        for seen in run["measured"]
    ]


def rows(data: Data) -> list[Data]:
    return [
        {
            "trained_by": run["rule"],
            "seed": run["seed"],
            "step": seen["step"],
            "rule": rule,
            "cosine": seen["cosine"][rule],
            "noisy_cosine": seen["noisy"][rule],
        }
        for run in data["runs"]
        for seen in run["measured"]
        for rule in RULES
    ]


def draw(data: Data, theme: Theme) -> Figure:
    figure, found = panels(theme, 3, size=(4.6, 3.7))
    for axes, kind, heading in zip(
        found, ("cosine", "noisy"), ("Before the noise", "With the noise"), strict=False
    ):
        _histogram(axes, theme, {rule: pooled(data, kind, rule, (rule,)) for rule in TRAINED})
        label(axes, theme, heading, "cosine to the true batch mean", "share of measurements")
    _paired(found[2], theme, data)
    return figure


def _histogram(axes: Axes, theme: Theme, values: dict[str, list[float]]) -> None:
    """One above the other, so that none hides another; the line is the mean."""
    everything = [value for found in values.values() for value in found]
    low, high = min(everything), max(everything)
    edges = [low + (high - low) * k / 20 for k in range(21)]
    tallest = max(max(_shares(found, edges)) for found in values.values())
    for level, (rule, found) in enumerate(reversed(values.items())):
        floor, colour = level * 1.25 * tallest, theme.colours[COLOURS[rule]]
        heights = [floor + share for share in _shares(found, edges)]
        axes.stairs(heights, edges, baseline=floor, fill=True, color=colour, alpha=0.3)
        axes.stairs(heights, edges, baseline=floor, color=colour, linewidth=1.6)
        mean = statistics.fmean(found)
        axes.plot([mean] * 2, [floor, floor + tallest], color=colour, linewidth=2.2)
        place: dict[str, Any] = {"fontsize": 8.5, "color": theme.text, "va": "top"}
        named = f"{TITLES[rule]}: mean {mean:.3f}"
        axes.text(low, floor + 1.17 * tallest, named, **place)
    axes.set_yticks([])


def _shares(values: list[float], edges: list[float]) -> list[float]:
    """The share of the values in each bin."""
    import numpy as np

    counts, _ = np.histogram(values, edges)
    return (counts / len(values)).tolist()


def _paired(axes: Axes, theme: Theme, data: Data) -> None:
    """Mean noise-free against mean noisy cosine of every rule on the same gradients."""
    for rule in RULES:
        x = statistics.fmean(pooled(data, "cosine", rule))
        y = statistics.fmean(pooled(data, "noisy", rule))
        colour = theme.colours[COLOURS[rule]]
        axes.plot(x, y, marker="o" if rule in TRAINED else "D", markersize=7, color=colour)
        style: dict[str, Any] = {"textcoords": "offset points", "color": theme.quiet, "fontsize": 8}
        below = -12 if rule == "psac 0.01" else 4
        axes.annotate(TITLES[rule], (x, y), (7, below), **style)
    axes.margins(x=0.1, y=0.12)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.5 * (high - low))  # room for the names
    axes.set_xticks([tick for tick in axes.get_xticks() if low < tick < 0.9])
    label(axes, theme, "All rules on the same gradients", "mean before the noise", "mean with it")


def caption(data: Data) -> str:
    run, number = data["runs"][0], len(pooled(data, "cosine", "psac"))
    table = ["| rule | before the noise | with the noise |", "|---|---:|---:|"]
    for rule in RULES:
        means = [statistics.fmean(pooled(data, kind, rule)) for kind in ("cosine", "noisy")]
        table.append(f"| {TITLES[rule]} | {means[0]:.4f} | {means[1]:.4f} |")
    recipe = run["asked"]["recipe"]
    return (
        "Cosine between the weighted mean of a batch and its true mean on Fashion-MNIST: five runs "
        f"each by DP-PSAC and Auto-S with r = {R:g}, and by the Auto-S of equal largest weight, "
        f"r = {MATCHED:.3g} (seeds {', '.join(map(str, SEEDS))}), every "
        f"{EVERY} of {run['steps']} iterations; B = {recipe['batch_size']}, lr = "
        f"{recipe['learning_rate']:g}, C = {recipe['bound']:g}, (3, 1e-5) spent in "
        f"{recipe['epochs']:g} epochs where the paper has 40, noise multiplier "
        f"{run['noise_multiplier']:.4g}. Right: every rule tried on all {number} measured batches, "
        "whoever trained.\n\nMeans on the same gradients:\n\n"
        + "\n".join(table)
        + "\n\n**Beside the paper.** "
        + verdict(data)
    )


def own_runs(data: Data, kind: str) -> dict[str, list[float]]:
    """The mean cosine of each run, by the rule that trained it and is measured."""
    return {
        rule: [
            statistics.fmean(seen[kind][rule] for seen in run["measured"])
            for run in data["runs"]
            if run["rule"] == rule
        ]
        for rule in TRAINED
    }


def won(data: Data, kind: str, rival: str) -> float:
    """The share of batches in which DP-PSAC has the larger cosine than the rival."""
    pairs = zip(pooled(data, kind, "psac"), pooled(data, kind, rival), strict=True)
    return statistics.fmean(mine > other for mine, other in pairs)


def verdict(data: Data) -> str:
    """Run against run as in the paper, then all on the same gradients."""
    text = []
    for kind, when in (("cosine", "Before the noise"), ("noisy", "With it")):
        runs = own_runs(data, kind)
        means = {rule: statistics.fmean(values) for rule, values in runs.items()}
        *_, p = paired(runs["psac"], runs["auto_s"])
        *_, unpaired = welch(runs["psac"], runs["auto_s"])
        text.append(
            f"{when} the mean is {means['psac']:.3f} in the runs of DP-PSAC, {means['auto_s']:.3f} "
            f"in those of Auto-S (over runs p = {p:.2g} paired by seed, {unpaired:.2g} by Welch's "
            f"test) and {means['auto_s matched']:.3f} in those of the Auto-S of equal largest "
            "weight."
        )
    shares = {
        rival: [won(data, kind, rival) for kind in ("cosine", "noisy")]
        for rival in ("auto_s", "auto_s matched")
    }
    return " ".join(
        [
            *text,
            "On the same gradients DP-PSAC has the larger cosine than Auto-S of equal r in "
            f"{shares['auto_s'][0]:.0%} of batches before the noise and {shares['auto_s'][1]:.0%} "
            "with it; than the Auto-S of equal largest weight in "
            f"{shares['auto_s matched'][0]:.0%} and {shares['auto_s matched'][1]:.0%}.",
        ]
    )


FIG3 = Exhibit(
    name="fig3",
    command="python -m paper fig3",
    title="Figure 3. Cosine of the weighted to the true batch mean",
    settings={
        "schedule": SCHEDULE,
        "trained": {name: list(rule) for name, rule in TRAINED.items()},
        "seeds": SEEDS,
        "every": EVERY,
        "rules": [*RULES],
    },
    compute=compute,
    rows=rows,
    draw=draw,
    caption=caption,
)
