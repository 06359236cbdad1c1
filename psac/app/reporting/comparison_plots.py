"""Several runs in one plot: accuracy against epsilon, and learning curves.

Colours stand for settings and dashes for budgets; runs that differ only in their seed look alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from psac.app.reporting import numerals, plots
from psac.app.reporting.axes import Axis
from psac.app.reporting.html import Html, element
from psac.app.reporting.learning_curves import time_axis, unit, values
from psac.app.reporting.plots import Mark, Point
from psac.app.reporting.statistics import Group

APART = 0.012  # of the axis, between dots that would cover each other
BARS = "Means over runs; bars are one standard deviation between runs."
ONE_RUN_EACH = "One run each, so small differences may be chance."


def against_epsilon(groups: Sequence[Group]) -> Html | None:
    """Means over runs with their deviation; a line joins the budgets of the same settings."""
    rows = [(g, g.epsilon, g.mean) for g in groups if g.epsilon is not None and g.mean is not None]
    if not rows:
        return None
    spreads = {id(group): group.deviation or 0.0 for group, _, _ in rows}
    ends = [mean + sign * spreads[id(group)] for group, _, mean in rows for sign in (-1, 1)]
    x = Axis.over(_roomy([spent for _, spent, _ in rows]), "epsilon")
    y = Axis.over(ends, "accuracy", write=_percent)
    marks: list[Mark] = []
    names = list(dict.fromkeys(group.series for group, _, _ in rows))
    for place, name in enumerate(names):
        shift = (place - (len(names) - 1) / 2) * APART * (x.high - x.low)
        members = sorted((row for row in rows if row[0].series == name), key=lambda row: row[1])
        points = [(spent + shift, mean) for _, spent, mean in members]
        bars = [
            (at, mean - spreads[id(group)], mean + spreads[id(group)])
            for (group, _, _), (at, mean) in zip(members, points, strict=True)
        ]
        marks += [
            plots.line(x, y, points, colour=place, faded=True),
            plots.errors(x, y, bars, colour=place),
            plots.dots(x, y, points, colour=place, label=name),
        ]
    texts = [f"{g.label}: {_percent(mean)} at {numerals.epsilon(spent)}" for g, spent, mean in rows]
    return _section(
        plots.plot(
            x,
            y,
            marks,
            title="Accuracy against epsilon",
            explanation=(BARS if _repeated(groups) else ONE_RUN_EACH) + " Dots are shifted "
            "sideways a little, so that none covers another.",
            description="; ".join(texts),
        )
    )


def _repeated(groups: Sequence[Group]) -> bool:
    return any(len(group.runs) > 1 for group in groups)


def _section(figure: Html) -> Html:
    return element("section", figure, class_="wide")


def _roomy(spent: Sequence[float]) -> list[float]:
    """The range of the values with a margin, even if all are nearly equal."""
    low, high = min(spent), max(spent)
    room = max(0.08 * (high - low), 0.08 * high)
    return [max(0.0, low - room), high + room]


def _percent(value: float) -> str:
    return f"{100 * value:.4g}{numerals.SPACE}%"


def curves(groups: Sequence[Group]) -> Html | None:
    """A faint line for each run, and the mean of runs that differ only in their seed."""
    drawn = [
        (group, run, values(run.evaluations, "accuracy")) for group in groups for run in group.runs
    ]
    drawn = [row for row in drawn if row[2]]
    every = [points for _, _, points in drawn]
    if not every:
        return None
    x = time_axis(*every, name=unit(groups[0].runs[0].evaluations))
    y = Axis.over([value for points in every for _, value in points], "accuracy", write=_percent)
    marks = []
    for group, style in zip(groups, _styles(groups), strict=True):
        lines = [points for member, _, points in drawn if member is group]
        marks += _group_marks(x, y, group, lines, style)
    ends = [f"{run.name} ends at {_percent(points[-1][1])}" for _, run, points in drawn]
    return _section(
        plots.plot(
            x,
            y,
            marks,
            title="Learning curves",
            explanation="Bold: the mean over runs. Faint: each run."
            if _repeated(groups)
            else ONE_RUN_EACH,
            description="; ".join(ends),
        )
    )


def _styles(groups: Sequence[Group]) -> list[int]:
    """The number of the style of each group: colour by settings, dash by budget."""
    names = [group.series for group in groups]
    distinct = list(dict.fromkeys(names))
    return [
        distinct.index(name) % plots.SERIES + plots.SERIES * names[:place].count(name)
        for place, name in enumerate(names)
    ]


def _group_marks(
    x: Axis, y: Axis, group: Group, lines: Sequence[Sequence[Point]], style: int
) -> list[Mark]:
    mean = _mean_curve(lines)
    draw = plots.line if any(len(points) > 1 for points in lines) else plots.dots
    if mean is None or len(lines) == 1:
        return [
            draw(x, y, points, colour=style, label="" if place else group.label)
            for place, points in enumerate(lines)
        ]
    faint = [plots.line(x, y, p, colour=style % plots.SERIES, faded=True) for p in lines]
    return [*faint, draw(x, y, mean, colour=style, label=group.label)]


def _mean_curve(lines: Sequence[Sequence[Point]]) -> list[Point] | None:
    """The mean up to the end of the shortest line; None if the times differ."""
    shortest = min((len(points) for points in lines), default=0)
    columns = list(zip(*(points[:shortest] for points in lines), strict=True))
    if any(len({at for at, _ in column}) > 1 for column in columns):
        return None
    return [(column[0][0], statistics.fmean(value for _, value in column)) for column in columns]
