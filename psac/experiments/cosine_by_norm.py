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

from psac.experiments.exhibit import Data, Exhibit, Folder
from psac.experiments.observed import calibrated, observed
from psac.experiments.result_files import settings_of
from psac.experiments.sample_gradients import cosines, gradients_of
from psac.experiments.theme import Theme, label, panels
from psac.training.recipe import Recipe
from psac.training.splits import load_splits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS_PER_DECADE = 4
LOWEST, HIGHEST = -8, 3  # powers of ten
DECILES = 10
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
        return {"recipe": settings_of(self.recipe), "every": self.every}


def compute(folder: Folder, tasks: list[Task]) -> Data:
    """The tasks whose data set is there; the names of the others are under `missing`."""
    from psac import data

    known = [task for task in tasks if task.recipe.data in data.names()]
    found = {task.name: folder.run(task.name, task.asked, _run_of(task)) for task in known}
    missing = [task.name for task in tasks if task not in known]
    curves = {
        task.name: {"title": task.title, **found[task.name], **averages(found[task.name])}
        for task in known
    }
    return {"missing": missing, "curves": curves}


def _run_of(task: Task) -> Any:
    def run(checkpoint: Any) -> Data:
        splits = load_splits(task.recipe)
        recipe = calibrated(task.recipe, splits)
        return observed(recipe, splits, checkpoint, measure=measure, every=task.every)

    return run


def measure(model: nn.Module, inputs: Tensor, labels: Tensor, _: float) -> Data:
    """Number and summed cosine of the samples in each bin of norms and in each decile."""
    gradients_np = gradients_of(model, inputs, labels)
    norms = gradients_np.norm(dim=1)
    found = cosines(gradients_np, gradients_np.mean(0)).double()
    bins = (norms.clamp(min=10.0**LOWEST).log10() - LOWEST) * BINS_PER_DECADE
    bins = bins.long().clamp(max=(HIGHEST - LOWEST) * BINS_PER_DECADE - 1)
    ranks = norms.argsort().argsort() * DECILES // len(norms)
    return {
        "bins": {str(k): _summed(found[bins == k]) for k in bins.unique().tolist()},
        "deciles": [_summed(found[ranks == k]) for k in range(DECILES)],
        "median_norm": float(norms.median()),
    }


def _summed(values: Tensor) -> list[float]:
    """Count, sum and sum of squares."""
    return [len(values), round(float(values.sum()), 6), round(float(values.square().sum()), 6)]


def averages(run: Data) -> Data:
    """Over all that was measured: bins as [norm, samples, mean, deviation], and decile means."""
    bins: dict[int, Tensor] = {}
    for seen in run["measured"]:
        for k, summed in seen["bins"].items():
            added = torch.tensor(summed, dtype=torch.float64)
            bins[int(k)] = bins.get(int(k), torch.zeros(3, dtype=torch.float64)) + added
    deciles = torch.tensor([seen["deciles"] for seen in run["measured"]], dtype=torch.float64)
    totals = deciles.sum(0)
    return {
        "bins": [_bin(k, bins[k]) for k in sorted(bins)],
        "deciles": (totals[:, 1] / totals[:, 0]).tolist(),
    }


def _bin(k: int, summed: Tensor) -> Data:
    count, total, squares = summed.tolist()
    mean = total / count
    return {
        "norm": 10.0 ** (LOWEST + (k + 0.5) / BINS_PER_DECADE),
        "samples": int(count),
        "cosine": mean,
        "deviation": max(squares / count - mean * mean, 0.0) ** 0.5,
    }


def rows(data: Data) -> list[Data]:
    return [
        {"task": name, **found} for name, curve in data["curves"].items() for found in curve["bins"]
    ]


def draw(data: Data, theme: Theme) -> Figure:
    figure, found = panels(theme, 2, len(data["curves"]), size=(5.0, 3.5))
    for k, curve in enumerate(data["curves"].values()):
        _by_norm(found[2 * k], theme, curve)
        _by_decile(found[2 * k + 1], theme, curve)
    return figure


def _by_norm(axes: Axes, theme: Theme, curve: Data) -> None:
    bins = [b for b in curve["bins"] if b["samples"] >= FEWEST]
    norms, means = [b["norm"] for b in bins], [b["cosine"] for b in bins]
    low = [b["cosine"] - b["deviation"] for b in bins]
    high = [b["cosine"] + b["deviation"] for b in bins]
    colour = theme.colours["psac"]
    axes.fill_between(norms, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(norms, means, color=colour, linewidth=2.2, marker="o", markersize=3.5)
    axes.axhline(0, color=theme.quiet, linewidth=1)
    axes.set(xscale="log")
    label(axes, theme, curve["title"], "norm of the sample's gradient", "cosine to the batch mean")


def _by_decile(axes: Axes, theme: Theme, curve: Data) -> None:
    places = range(1, DECILES + 1)
    axes.bar(places, curve["deciles"], color=theme.colours["psac"], width=0.72)
    axes.axhline(0, color=theme.quiet, linewidth=1)
    axes.grid(axis="x", visible=False)
    axes.set_xticks(places)
    label(axes, theme, f"{curve['title']}, by rank", "decile of the norm in its batch", "")


def caption(data: Data) -> str:
    return "\n\n".join(
        [
            "Mean cosine between a sample's gradient and the mean gradient of its batch, while "
            "DP-SGD trains: by norm (the band is one standard deviation of samples; bins of fewer "
            f"than {FEWEST} samples are left out) and by decile of the norm within each batch.",
            *(_said(curve) for curve in data["curves"].values()),
            *(f"`{name}` is not here: its data set is not known." for name in data["missing"]),
            "**Beside the paper.** " + " ".join(verdict(c) for c in data["curves"].values()),
        ]
    )


def _said(curve: Data) -> str:
    recipe, deciles = curve["asked"]["recipe"], curve["deciles"]
    return (
        f"{curve['title']}: B = {recipe['batch_size']}, lr = {recipe['learning_rate']:g}, C = "
        f"{recipe['bound']:g}, delta = {recipe['delta']:g}, {recipe['epochs']:g} epochs = "
        f"{curve['steps']} steps, noise multiplier {curve['noise_multiplier']:.4g}, seed "
        f"{recipe['seed']}, {len(curve['measured'])} batches measured; test accuracy "
        f"{curve['accuracy']:.2%}. Deciles: {', '.join(f'{c:.3f}' for c in deciles)}."
    )


def rises(curve: Data) -> bool:
    """Whether the largest third of gradients points along the mean more than the smallest does."""
    deciles = curve["deciles"]
    return sum(deciles[-3:]) > sum(deciles[:3])


def verdict(curve: Data) -> str:
    smallest, largest = curve["deciles"][0], curve["deciles"][-1]
    top = max(range(DECILES), key=lambda k: curve["deciles"][k]) + 1
    near = abs(smallest) < 0.1 or smallest < 0
    return (
        f"{curve['title']}: larger gradients "
        + ("have" if rises(curve) else "do not have")
        + f" the larger cosines (smallest decile {smallest:.3f}, largest {largest:.3f}, highest "
        f"in decile {top}); the smallest "
        + ("are" if near else "are not")
        + " nearly orthogonal to the mean or opposed to it."
    )


def exhibit(name: str, title: str, tasks: list[Task]) -> Exhibit:
    """A figure of these tasks."""
    return Exhibit(
        name=name,
        title=title,
        command=f"psac paper {name}",
        settings={task.name: task.asked for task in tasks},
        compute=lambda folder: compute(folder, tasks),
        rows=rows,
        draw=draw,
        caption=caption,
    )
