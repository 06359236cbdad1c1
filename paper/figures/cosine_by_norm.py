"""The cosine of a sample's gradient to the mean of its batch, by its norm: Figures 1 and 6.

DP-SGD trains as in the paper's set-up, for fewer epochs; every so many steps all samples of the
batch are sorted into bins of their norm and, apart from that, into deciles of their batch.  The
paper says: larger gradients have larger cosines, the smallest are near 0 or below.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paper.figures.exhibit import Data, Exhibit, Folder
from paper.figures.observed import calibrated, observed
from paper.figures.sample_gradients import gradients_of
from paper.figures.theme import Theme, label, legend, line, panels
from paper.result_files import settings_of
from psac.app.data.entry import DataNotFound
from psac.app.training.recipe import Recipe
from psac.app.training.splits import load_splits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS_PER_DECADE = 4
LOWEST, HIGHEST = -8, 3  # powers of ten
DECILES = 10
COSINES = {"all": "to the mean of the batch", "others": "to the mean of the others"}
STYLES = {"all": "psac", "others": "auto_s"}
NEAR = 0.1
NOTES = {
    "cifar10-features": "The features are those of EfficientNet-Lite0; the paper's, of SimCLRv2"
}
FEWEST = 20  # samples in a bin that is drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A run of DP-SGD, measured every `every` steps."""

    name: str
    title: str
    recipe: Recipe
    every: int

    @property
    def asked(self) -> Data:
        return {"recipe": settings_of(self.recipe), "every": self.every, "cosines": [*COSINES]}


def compute(folder: Folder, tasks: list[Task]) -> Data:
    """The tasks whose data can be had; why the others cannot is under `missing`."""
    curves, missing = {}, {}
    for task in tasks:
        try:
            run = folder.run(task.name, task.asked, _run_of(task))
        except (DataNotFound, ImportError) as error:
            missing[task.name] = str(error).splitlines()[0]
        else:
            curves[task.name] = {"title": task.title, **run, **averages(run)}
    return {"missing": missing, "curves": curves}


def _run_of(task: Task) -> Any:
    def run(checkpoint: Any) -> Data:
        splits = load_splits(task.recipe)
        recipe = calibrated(task.recipe, splits)
        return observed(recipe, splits, checkpoint, measure=measure, every=task.every)

    return run


def measure(model: nn.Module, inputs: Tensor, labels: Tensor, _: float) -> Data:
    """Number, sum and sum of squares of both cosines in each bin of norms and in each decile."""
    gradients_np = gradients_of(model, inputs, labels)
    norms = gradients_np.norm(dim=1)
    found = dict(zip(COSINES, both_cosines(gradients_np), strict=True))
    bins = (norms.clamp(min=10.0**LOWEST).log10() - LOWEST) * BINS_PER_DECADE
    bins = bins.long().clamp(max=(HIGHEST - LOWEST) * BINS_PER_DECADE - 1)
    ranks = norms.argsort().argsort() * DECILES // len(norms)
    return {
        "median_norm": float(norms.median()),
        "bins": {
            str(k): [_summed(c[bins == k]) for c in found.values()] for k in bins.unique().tolist()
        },
        "deciles": [[_summed(c[ranks == k]) for c in found.values()] for k in range(DECILES)],
    }


def both_cosines(gradients_np: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row to the mean of all rows, and to that of the others."""
    total = gradients_np.sum(0).double()
    squares = gradients_np.double().square().sum(1)
    products = gradients_np.double() @ total
    others = (total @ total - 2 * products + squares).clamp(min=1e-300).sqrt()
    norms = squares.clamp(min=1e-300).sqrt()
    return products / (norms * total.norm()), (products - squares) / (norms * others)


def _summed(values: Tensor) -> list[float]:
    return [len(values), round(float(values.sum()), 6), round(float(values.square().sum()), 6)]


def averages(run: Data) -> Data:
    """Over all that was measured: a row for each bin of norms, and the means of each decile."""
    bins: dict[int, Tensor] = {}
    for seen in run["measured"]:
        for k, summed in seen["bins"].items():
            added = torch.tensor(summed, dtype=torch.float64)
            bins[int(k)] = bins.get(int(k), torch.zeros_like(added)) + added
    deciles = torch.tensor([seen["deciles"] for seen in run["measured"]], dtype=torch.float64)
    means = (deciles[..., 1].sum(0) / deciles[..., 0].sum(0)).T.tolist()
    return {
        "bins": [_bin(k, bins[k].tolist()) for k in sorted(bins)],
        "deciles": dict(zip(COSINES, means, strict=True)),
    }


def _bin(k: int, summed: list[list[float]]) -> Data:
    found: Data = {
        "norm": 10.0 ** (LOWEST + (k + 0.5) / BINS_PER_DECADE),
        "samples": int(summed[0][0]),
    }
    for name, (count, total, squares) in zip(COSINES, summed, strict=True):
        mean = total / count
        found[name] = mean
        found[f"{name}_deviation"] = max(squares / count - mean * mean, 0.0) ** 0.5
    return found


def rows(data: Data) -> list[Data]:
    """By norm, then by decile, whose numbers of samples are equal."""
    found = []
    for name, curve in data["curves"].items():
        for b in curve["bins"]:
            rest = {key: value for key, value in b.items() if key != "norm"}
            found.append({"task": name, "by": "norm", "place": b["norm"], **rest})
        for k in range(DECILES):
            means = {kind: curve["deciles"][kind][k] for kind in COSINES}
            found.append({"task": name, "by": "decile", "place": k + 1, **means})
    return found


def draw(data: Data, theme: Theme) -> Figure:
    figure, found = panels(theme, 2, len(data["curves"]), size=(5.0, 3.5))
    for k, curve in enumerate(data["curves"].values()):
        _by_norm(found[2 * k], theme, curve)
        _by_decile(found[2 * k + 1], theme, curve)
    return figure


def _by_norm(axes: Axes, theme: Theme, curve: Data) -> None:
    bins = [b for b in curve["bins"] if b["samples"] >= FEWEST]
    norms = [b["norm"] for b in bins]
    low = [b["all"] - b["all_deviation"] for b in bins]
    high = [b["all"] + b["all_deviation"] for b in bins]
    axes.fill_between(norms, low, high, color=theme.colours["psac"], alpha=0.16, linewidth=0)
    for name, rule in STYLES.items():
        style = line(theme, rule)
        heights = [b[name] for b in bins]
        axes.plot(norms, heights, **style, marker="o", markersize=3, label=COSINES[name])
    axes.axhline(0, color=theme.quiet, linewidth=1)
    axes.set(xscale="log")
    label(axes, theme, curve["title"], "norm of the sample's gradient", "cosine")
    legend(axes, theme, loc="upper left")


def _by_decile(axes: Axes, theme: Theme, curve: Data) -> None:
    for (name, rule), shift in zip(STYLES.items(), (-0.2, 0.2), strict=True):
        places = [k + shift for k in range(1, DECILES + 1)]
        heights = curve["deciles"][name]
        axes.bar(places, heights, 0.38, color=theme.colours[rule], label=COSINES[name])
    axes.axhline(0, color=theme.quiet, linewidth=1)
    axes.grid(axis="x", visible=False)
    axes.set_xticks(range(1, DECILES + 1))
    label(axes, theme, f"{curve['title']}, by rank", "decile of the norm in its batch", "")
    legend(axes, theme, loc="upper left")


def caption(data: Data) -> str:
    return "\n\n".join(
        [
            "Mean cosine between a sample's gradient and the mean gradient of its batch, while "
            "DP-SGD trains: by norm (the band is one standard deviation of samples; bins of fewer "
            f"than {FEWEST} samples are left out) and by decile of the norm within each batch. A "
            "sample is part of the mean that it is compared with, the more so the larger it is; "
            "the second curve leaves it out. Schedules are shorter than the paper's, which have 40 "
            "epochs, and 50 on features of CIFAR-10.",
            *(_said(curve) for curve in data["curves"].values()),
            *(f"{NOTES[name]}." for name in data["curves"] if name in NOTES),
            *(f"`{name}` is missing: {why}" for name, why in data["missing"].items()),
            "**Beside the paper.** " + " ".join(verdict(c) for c in data["curves"].values()),
        ]
    )


def _said(curve: Data) -> str:
    recipe = curve["asked"]["recipe"]
    return (
        f"{curve['title']}: B = {recipe['batch_size']}, lr = {recipe['learning_rate']:g}, C = "
        f"{recipe['bound']:g}, ({recipe['epsilon']:g}, {recipe['delta']:g}) in "
        f"{recipe['epochs']:g} epochs = {curve['steps']} steps, noise multiplier "
        f"{curve['noise_multiplier']:.4g}, seed {recipe['seed']}, {len(curve['measured'])} batches "
        f"measured; test accuracy {curve['accuracy']:.2%}."
    )


def lowest_tenth(curve: Data) -> int:
    """Which tenth of the norms points along the mean least, from 1 for the smallest."""
    return 1 + min(range(DECILES), key=lambda k: curve["deciles"]["all"][k])


def rise(curve: Data, name: str = "all") -> float:
    """By how much the largest tenth points along the mean more than the smallest does."""
    return curve["deciles"][name][-1] - curve["deciles"][name][0]


def own_part(curve: Data) -> float:
    """The share of the rise that is a sample's own part in the mean."""
    return 1 - rise(curve, "others") / rise(curve)


def verdict(curve: Data) -> str:
    """By deciles; "nearly orthogonal" is a cosine below 0.1."""
    smallest, largest = curve["deciles"]["all"][0], curve["deciles"]["all"][-1]
    lowest = lowest_tenth(curve)
    text = (
        f"{curve['title']}: the largest tenth of gradients has a mean cosine of {largest:.3f}, the "
        f"smallest of {smallest:.3f}, which "
        + ("is" if smallest < NEAR else "is not")
        + " nearly orthogonal to the mean or opposed to it. The lowest mean is that of tenth "
        f"{lowest}, {min(curve['deciles']['all']):.3f}."
    )
    if rise(curve) <= 0:
        return text + " Cosines do not rise with the norm."
    alone = curve["deciles"]["others"][-1]
    how = "rise with the norm" if lowest == 1 else f"fall up to tenth {lowest} and rise from there"
    return text + (
        f" Cosines {how}; {own_part(curve):.0%} of the rise is a sample's own "
        f"part: compared with the mean of the others, the largest tenth has {alone:.3f}."
    )


def exhibit(name: str, title: str, tasks: list[Task]) -> Exhibit:
    """A figure of these tasks."""
    return Exhibit(
        name=name,
        title=title,
        command=f"python -m paper {name}",
        settings={task.name: task.asked for task in tasks},
        compute=lambda folder: compute(folder, tasks),
        rows=rows,
        draw=draw,
        caption=caption,
    )
