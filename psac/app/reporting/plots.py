"""Plots as inline SVG that fit any width and both colour schemes.

The drawing has 1000 units on each side and is stretched to its box.  Lines and dots keep their
width, and labels are HTML beside the drawing, so that they have the size of text on every screen.
Colours are numbers of series; the style sheet maps them to the colour scheme of the reader.  Every
plot is one image with a description; values are shown under the pointer and in a table below.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

from psac.app.reporting.axes import Axis, Tick
from psac.app.reporting.html import Child, Html, element, join

SIZE = 1000.0
SERIES = 6  # colours
MANY = 80

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
    """A drawing and its entry in the legend."""

    drawing: Html
    label: str = ""
    colour: int = 0
    shape: str = "line"


def colour_of(series: int) -> str:
    """The classes of a series: after all colours come the same ones with dashes, then dots."""
    return f"s{series % SERIES} d{series // SERIES % 3}"


def _place(x: Axis, y: Axis, point: Point) -> str:
    return f"{SIZE * x.place(point[0]):.1f} {SIZE * (1 - y.place(point[1])):.1f}"


def _finite(points: Iterable[Point]) -> list[Point]:
    return [point for point in points if all(math.isfinite(value) for value in point)]


def line(
    x: Axis,
    y: Axis,
    points: Iterable[Point],
    *,
    colour: int = 0,
    label: str = "",
    faded: bool = False,
) -> Mark:
    """A line; a single point gives nothing."""
    places = [_place(x, y, point) for point in _finite(points)]
    kind = f"line {colour_of(colour)}{' faded' if faded else ''}"
    path = element("path", d="M" + "L".join(places), class_=kind)
    return Mark(drawing=path if len(places) > 1 else Html(), label=label, colour=colour)


def trend(x: Axis, y: Axis, points: Sequence[Point], *, colour: int) -> list[Mark]:
    """A line; many scattered points are faded behind their running mean."""
    if len(points) < MANY:
        return [line(x, y, points, colour=colour)]
    means = [
        (at, statistics.fmean(value for _, value in _around(points, place)))
        for place, (at, _) in enumerate(points)
    ]
    return [line(x, y, points, colour=colour, faded=True), line(x, y, means, colour=colour)]


def _around(points: Sequence[Point], place: int) -> Sequence[Point]:
    """The same number of neighbours on either side, so that the ends are not biased."""
    reach = min(len(points) // 40, place, len(points) - 1 - place)
    return points[place - reach : place + reach + 1]


def dots(x: Axis, y: Axis, points: Iterable[Point], *, colour: int = 0, label: str = "") -> Mark:
    """Dots, as lines without length and with round ends, which are not stretched."""
    path = "".join(f"M{_place(x, y, point)}h0" for point in _finite(points))
    drawing = element("path", d=path, class_=f"dots {colour_of(colour)}")
    return Mark(drawing=drawing, label=label, colour=colour, shape="dot")


def errors(x: Axis, y: Axis, bars: Iterable[tuple[float, float, float]], *, colour: int) -> Mark:
    """A vertical line at each x, from a low to a high y."""
    parts = [f"M{_place(x, y, (at, a))}L{_place(x, y, (at, b))}" for at, a, b in bars if a < b]
    path = element("path", d="".join(parts), class_=f"line {colour_of(colour)}")
    return Mark(drawing=path if parts else Html(), colour=colour)


def band(
    x: Axis,
    y: Axis,
    edges: Iterable[tuple[float, float, float]],
    *,
    colour: int = 0,
    label: str = "",
    strength: int = 1,
) -> Mark:
    """The area from a low to a high y along x."""
    rows = [row for row in edges if all(math.isfinite(value) for value in row)]
    there = [_place(x, y, (at, high)) for at, _, high in rows]
    back = [_place(x, y, (at, low)) for at, low, _ in reversed(rows)]
    kind = f"area a{strength} {colour_of(colour)}"
    path = element("path", d="M" + "L".join(there + back) + "Z", class_=kind)
    return Mark(
        drawing=path if len(rows) > 1 else Html(),
        label=label,
        colour=colour,
        shape=f"area a{strength}",
    )


def steps(
    x: Axis,
    y: Axis,
    edges: Sequence[float],
    heights: Sequence[float],
    *,
    colour: int = 0,
    label: str = "",
) -> Mark:
    """A histogram as a filled outline."""
    corners = [(edges[0], y.low)]
    for left, right, height in zip(edges[:-1], edges[1:], heights, strict=True):
        corners += [(left, height), (right, height)]
    corners.append((edges[-1], y.low))
    path = "M" + "L".join(_place(x, y, corner) for corner in corners)
    drawing = join(
        element("path", d=path + "Z", class_=f"area a1 {colour_of(colour)}"),
        element("path", d=path, class_=f"line {colour_of(colour)}"),
    )
    return Mark(drawing=drawing, label=label, colour=colour, shape="area a1")


def hints(x: Axis, notes: Sequence[tuple[float, str]]) -> Html:
    """Columns around each x that show a text under the pointer."""
    places = [x.place(at) for at, _ in notes]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(places)]
    lefts, rights = [0.0, *middles], [*middles, 1.0]
    return join(
        element(
            "rect",
            element("title", text),
            x=f"{SIZE * left:.1f}",
            y=0,
            width=f"{max(SIZE * (right - left), 0.1):.1f}",
            height=1000,
            class_="hint",
        )
        for left, right, (_, text) in zip(lefts, rights, notes, strict=True)
    )


def plot(
    x: Axis,
    y: Axis,
    marks: Sequence[Mark],
    *,
    title: str,
    explanation: Child = None,
    description: str,
    notes: Sequence[tuple[float, str]] = (),
    top: Axis | None = None,
    top_ticks: Sequence[Tick] = (),
    below: Child = None,
    wide: bool = False,
) -> Html:
    """A figure.  `description` is for screen readers; `below` is the table of its values.

    `top` is a second scale of x, with `top_ticks` at positions of the first one.
    """
    canvas = element(
        "svg",
        _grid(x, y),
        [mark.drawing for mark in marks],
        hints(x, notes) if notes else None,
        viewBox=f"0 0 {SIZE:.0f} {SIZE:.0f}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    widest = max((len(tick.label) for tick in y.ticks), default=1)
    frame = element(
        "div",
        element("div", y.label, class_="y-name"),
        element("div", top.label, class_="top-name") if top else None,
        element("div", _labels(x, top_ticks, "left"), class_="top") if top else None,
        element("div", _labels(y, y.ticks, "bottom"), class_="y", style=f"width:{widest + 1}ch"),
        canvas,
        element("div", _labels(x, x.ticks, "left"), class_="x"),
        element("div", x.label, class_="x-name"),
        class_="plot",
        role="img",
        aria_label=f"{title}: {description}",
    )
    heading = element("figcaption", element("h3", title), _paragraph(explanation))
    return element("figure", heading, legend(marks), frame, below, class_="wide" if wide else None)


def legend(marks: Sequence[Mark]) -> Html | None:
    """The names of the series, if there are several."""
    named = [mark for mark in marks if mark.label]
    if len(named) < 2:
        return None
    entries = [
        element(
            "li",
            element("span", class_=f"key {mark.shape} {colour_of(mark.colour)}"),
            mark.label,
        )
        for mark in named
    ]
    return element("ul", entries, class_="legend")


def _paragraph(text: Child) -> Html | None:
    return None if text is None else element("p", text)


def _grid(x: Axis, y: Axis) -> Html:
    across = [f"M0 {SIZE * (1 - y.place(t.value)):.1f}H{SIZE:.0f}" for t in y.ticks]
    up = [f"M{SIZE * x.place(t.value):.1f} 0V{SIZE:.0f}" for t in x.ticks]
    return join(
        element("path", d="".join(up), class_="grid faint"),
        element("path", d="".join(across), class_="grid"),
    )


def _labels(axis: Axis, ticks: Sequence[Tick], side: str) -> list[Html]:
    return [
        element("span", tick.label, style=f"{side}:{100 * axis.place(tick.value):.2f}%")
        for tick in ticks
    ]
