"""Result files -> plots, each as SVG and PNG and for light and dark pages.

Bars start at 1.0, the ordinary step, on a logarithmic axis: the length of a bar is what privacy
costs, to the right more, to the left less. A bar longer than the axis is cut, with its figure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import records
from benchmarks.contestants import CONTESTANTS, TITLES
from benchmarks.records import Record
from benchmarks.workloads import WORKLOADS
from paper.figures.theme import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CUT = 8.0  # the longest bar
PRIVATE = tuple(name for name in CONTESTANTS if name not in ("ordinary", "engine"))
THEMES: dict[str, dict[str, str]] = {
    "light": {
        "page": "#ffffff",
        "text": "#1f2328",
        "quiet": "#59636e",
        "grid": "#e4e8ec",
        "ordinary": "#1f2328",
        "psac": "#0b6bcb",
        "opacus_ghost": "#d9822b",
        "opacus_hooks": "#edbe85",
        "vmap": "#b4bcc6",
    },
    "dark": {
        "page": "#0d1117",
        "text": "#e6edf3",
        "quiet": "#9198a1",
        "grid": "#252c35",
        "ordinary": "#e6edf3",
        "psac": "#58a6ff",
        "opacus_ghost": "#e3903c",
        "opacus_hooks": "#8a5a24",
        "vmap": "#58616c",
    },
}


def write(folder: Path) -> list[Path]:
    """All plots that the records of the folder allow."""
    import matplotlib

    matplotlib.use("Agg")
    speed, memory, sweeps = (records.load(folder, kind) for kind in ("speed", "memory", "scaling"))
    written: list[Path] = []
    for theme in THEMES:
        if speed or memory:
            written += save(_ratio_figure(speed, memory, theme), folder / f"bench-{theme}")
        if sweeps:
            written += save(_scaling_figure(sweeps, theme), folder / f"scaling-{theme}")
    return written


def _style(axes: Axes, colours: dict[str, str]) -> None:
    axes.set_facecolor(colours["page"])
    axes.tick_params(colors=colours["quiet"], length=0, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.grid(axis="both", which="major", color=colours["grid"], linewidth=0.8)
    axes.set_axisbelow(True)


def _ratio_figure(speed: dict[str, Record], memory: dict[str, Record], theme: str) -> Figure:
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    colours = THEMES[theme]
    names = [name for name in WORKLOADS if name in speed or name in memory]
    figure, panels = pyplot.subplots(
        1, 2, figsize=(11, 1.5 + 0.9 * len(names)), sharey=True, facecolor=colours["page"]
    )
    _ratio_panel(panels[0], "Time of a step", speed, names, colours)
    _ratio_panel(panels[1], "Peak memory of a step", memory, names, colours)
    titles = memory | speed
    labels = [f"{titles[n]['title']}\nB {titles[n]['settings']['batch_size']}" for n in names]
    panels[0].set_yticks([-i for i in range(len(names))], labels, color=colours["text"])
    panels[0].set_ylim(-len(names) + 0.5, 0.55)
    handles = [Rectangle((0, 0), 1, 1, color=colours[name]) for name in PRIVATE]
    figure.legend(
        handles,
        [TITLES[name] for name in PRIVATE],
        loc="lower center",
        ncols=len(PRIVATE),
        frameon=False,
        labelcolor=colours["text"],
        fontsize=10,
    )
    figure.tight_layout(rect=(0, 0.45 / figure.get_figheight(), 1, 1), w_pad=2.5)
    return figure


def _ratio_panel(
    axes: Axes,
    title: str,
    found: dict[str, Record],
    names: list[str],
    colours: dict[str, str],
) -> None:
    from matplotlib.ticker import FuncFormatter

    _style(axes, colours)
    axes.grid(axis="y", visible=False)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.set_title(f"{title}, ordinary = 1x", color=colours["text"], fontsize=11.5, loc="left")
    values = [1.0]
    for row, workload in enumerate(names):
        figures = found.get(workload, {}).get("contestants", {})
        for place, name in enumerate(PRIVATE):
            position = -row + 0.3 - 0.2 * place
            values += _bar(axes, position, figures.get(name), name, colours)
    axes.axvline(1.0, color=colours["ordinary"], linewidth=1.4)
    axes.set_xlim(min(0.8, min(values) / 1.2), CUT * 1.5)
    ticks = [tick for tick in (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8) if tick >= axes.get_xlim()[0]]
    axes.set_xticks(ticks)
    axes.minorticks_off()


def _bar(
    axes: Axes,
    position: float,
    figure: dict[str, Any] | None,
    name: str,
    colours: dict[str, str],
) -> list[float]:
    """One bar with its figure at its end; gives the value for the limits of the axis."""
    label: dict[str, Any] = {
        "va": "center_baseline",
        "fontsize": 8.5,
        "textcoords": "offset points",
    }
    strong = name == "psac"
    if figure is None or ("ratio" not in figure and figure["status"] == "ran"):
        return []
    if figure["status"] != "ran":
        label |= {"color": colours["quiet"], "style": "italic"}
        axes.annotate("cannot run", (1.0, position), xytext=(5, 0), **label)
        return []
    value = figure["ratio"]
    shown = min(value, CUT)
    axes.barh(position, shown - 1.0, left=1.0, height=0.17, color=colours[name])
    if value > CUT:  # two strokes of the page's colour: the bar goes on
        for place in (0.9, 0.93):
            ends = [place * CUT, place * CUT * 1.012]
            heights = [position - 0.1, position + 0.1]
            axes.plot(ends, heights, color=colours["page"], linewidth=1.6)
    axes.annotate(
        f"{value:.2f}x" if value < 9.95 else f"{value:.0f}x",
        (max(shown, 1.0), position),
        xytext=(5, 0),
        color=colours["psac"] if strong else colours["quiet"],
        fontweight="bold" if strong else "normal",
        **label,
    )
    return [value]


def _scaling_figure(sweeps: dict[str, Record], theme: str) -> Figure:
    from matplotlib import pyplot

    colours = THEMES[theme]
    figure, panels = pyplot.subplots(
        2, len(sweeps), figsize=(5.4 * len(sweeps), 7), facecolor=colours["page"], squeeze=False
    )
    quantities = (
        ("time", "lower_quartile_seconds", 1000.0, "ms a step"),
        ("memory", "steady_mb", 1.0, "MB a step"),
    )
    for column, record in enumerate(sweeps.values()):
        for row, (quantity, field, scale, unit) in enumerate(quantities):
            axes = panels[row, column]
            _style(axes, colours)
            _lines(axes, record, quantity, field, scale, colours)
            axes.set_ylabel(unit, color=colours["quiet"], fontsize=9)
        panels[0, column].set_title(
            record["title"], color=colours["text"], fontsize=11.5, loc="left"
        )
    panels[0, 0].legend(frameon=False, labelcolor=colours["text"], fontsize=9)
    figure.tight_layout(w_pad=2.5)
    return figure


def _lines(
    axes: Axes,
    record: Record,
    quantity: str,
    field: str,
    scale: float,
    colours: dict[str, str],
) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    sizes = [point["size"] for point in record["points"]]
    for name in record["exponents"]:
        figures = [(p["size"], p["contestants"][name][quantity]) for p in record["points"]]
        ran = [(size, scale * f[field]) for size, f in figures if f["status"] == "ran"]
        if ran:
            axes.plot(
                *zip(*ran, strict=True),
                marker="o",
                markersize=4.5,
                linewidth=2.2 if name == "psac" else 1.6,
                linestyle="--" if name == "ordinary" else "-",
                color=colours[name],
                label=TITLES[name],
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    axes.set_xticks(sizes)
