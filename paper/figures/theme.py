"""How pictures look: one style, on light and on dark pages.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart, adjusted to
each page, and one that differs from them in lightness (a test sees them as the colour-blind do);
rules also differ in line style.  A rule has the same colour in every picture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psac.app.data.optional import needed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Theme:
    name: str
    page: str
    text: str
    quiet: str
    grid: str
    colours: Mapping[str, str]
    heat: str  # matplotlib's name of the colour map


THEMES = {
    "light": Theme(
        name="light",
        page="#ffffff",
        text="#1f2328",
        quiet="#59636e",
        grid="#e4e8ec",
        colours={
            "psac": "#0b6bcb",
            "auto_s": "#d55e00",
            "abadi": "#009e73",
            "auto_v": "#a0569b",
            "sgd": "#1f2328",
            "matched": "#6b3500",
        },
        heat="cividis",
    ),
    "dark": Theme(
        name="dark",
        page="#0d1117",
        text="#e6edf3",
        quiet="#9198a1",
        grid="#252c35",
        colours={
            "psac": "#58a6ff",
            "auto_s": "#f0883e",
            "abadi": "#3fbf95",
            "auto_v": "#d38ac7",
            "sgd": "#e6edf3",
            "matched": "#ffe9a0",
        },
        heat="cividis",
    ),
}
LINES = {
    "psac": "-",
    "auto_s": "--",
    "abadi": "-.",
    "auto_v": ":",
    "sgd": "-",
    "matched": (0, (5, 1, 1, 1)),
}
NAMES = {
    "psac": "DP-PSAC",
    "auto_s": "Auto-S",
    "abadi": "DP-SGD",
    "auto_v": "Auto-V",
    "sgd": "SGD",
}


def line(theme: Theme, rule: str) -> dict[str, Any]:
    """The style of a rule's line."""
    width = 2.4 if rule == "psac" else 1.9
    return {"color": theme.colours[rule], "linestyle": LINES[rule], "linewidth": width}


def panels(
    theme: Theme, columns: int, rows: int = 1, *, size: tuple[float, float] = (4.6, 3.6), **options
) -> tuple[Figure, list[Axes]]:
    """A figure of empty panels in the style of the theme, in reading order."""
    needed("matplotlib", package="matplotlib", purpose="a picture", extra="plots").use("Agg")
    from matplotlib import pyplot

    figure, found = pyplot.subplots(
        rows,
        columns,
        figsize=(size[0] * columns, size[1] * rows),
        facecolor=theme.page,
        squeeze=False,
        **options,
    )
    for axes in found.flat:
        style(axes, theme)
    return figure, list(found.flat)


def style(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor(theme.page)
    axes.tick_params(which="both", colors=theme.quiet, length=0, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.grid(axis="both", which="major", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)


def label(axes: Axes, theme: Theme, title: str, x: str, y: str) -> None:
    axes.set_title(title, color=theme.text, fontsize=11.5, loc="left")
    axes.set_xlabel(x, color=theme.quiet, fontsize=9.5)
    axes.set_ylabel(y, color=theme.quiet, fontsize=9.5)


def legend(axes: Axes, theme: Theme, **options: Any) -> None:
    axes.legend(frameon=False, labelcolor=theme.text, fontsize=9, **options)


def level(axes: Axes, theme: Theme, height: float, name: str) -> None:
    """A horizontal line to compare with."""
    axes.axhline(height, color=theme.quiet, linewidth=1.2, linestyle=":", label=name)


def save(figure: Figure, stem: Path) -> list[Path]:
    """SVG and PNG; the same data give the same bytes."""
    import matplotlib
    from matplotlib import pyplot

    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    with matplotlib.rc_context({"svg.hashsalt": "psac"}):
        figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=160)
    pyplot.close(figure)
    return paths
