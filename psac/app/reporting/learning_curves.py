"""Accuracy and loss after each epoch, with the epsilon spent by then.

All of it is computed from the evaluation records, so it may be published only if these are public.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from psac.app.reporting import numerals, plots
from psac.app.reporting.axes import Axis, Tick
from psac.app.reporting.head import records_of
from psac.app.reporting.html import Html, element, table, unfold
from psac.app.reporting.snapshot import RunSnapshot, number

Lines = Sequence[Mapping[str, Any]]
TOP_TICKS = 5


def unit(lines: Lines) -> str:
    """The unit of the horizontal axis."""
    return "epoch" if all(number(line.get("epoch")) is not None for line in lines) else "step"


def values(lines: Lines, key: str) -> list[tuple[float, float]]:
    """Pairs of time and value, for lines that have both."""
    time = unit(lines)
    pairs = ((number(line.get(time)), number(line.get(key))) for line in lines)
    return [(at, value) for at, value in pairs if at is not None and value is not None]


def time_axis(*series: Sequence[tuple[float, float]], name: str) -> Axis:
    return Axis.over([0.0, *(at for points in series for at, _ in points)], name, tight=True)


def learning_curves(run: RunSnapshot) -> Html:
    """A section with curves, or with the reason why there are none."""
    plotted = [_accuracy(run), _loss(run), _scale(run)]
    figures = [figure for figure in plotted if figure is not None]
    body = element("div", figures, class_="grid")
    if not figures:
        reason = (
            f"Not shown, as the model was evaluated on {records_of(run)} without noise."
            if run.on_private_records
            else "The run has not been evaluated yet."
        )
        body = element("p", reason, class_="note")
    return element(
        "section",
        element("h2", "Learning"),
        element(
            "p",
            "Measured after each epoch"
            + f" on {records_of(run)}."
            + (" Along the top: the epsilon spent by then." if run.epsilon is not None else ""),
            class_="about",
        )
        if figures
        else None,
        body,
        id="learning",
    )


def epsilon_ticks(lines: Lines) -> list[Tick]:
    """Some of the computed epsilons, at their times."""
    known = values(lines, "epsilon")
    stride = max(1, -(-len(known) // TOP_TICKS))
    ticks = known[::-1][::stride][::-1]  # counted from the last one
    return [Tick(at, numerals.epsilon(value)) for at, value in ticks if at > 0]


def _curve(
    run: RunSnapshot, key: str, title: str, explanation: str, *, share: bool, colour: int
) -> Html | None:
    points = values(run.evaluations, key)
    if not points:
        return None
    write = numerals.percent if share else numerals.rounded
    x = time_axis(points, name=unit(run.evaluations))
    y = Axis.over([value for _, value in points], key, write=lambda v: _tick(v, share))
    ticks = epsilon_ticks(run.evaluations)
    marks = [plots.line(x, y, points, colour=colour)]
    if len(points) <= 60:
        marks.append(plots.dots(x, y, points, colour=colour))
    best = max(points, key=lambda point: point[1] if share else -point[1])
    return plots.plot(
        x,
        y,
        marks,
        title=title,
        explanation=explanation,
        description=f"from {write(points[0][1])} to {write(points[-1][1])} at {x.label} "
        f"{points[-1][0]:g}; the best is {write(best[1])}.",
        notes=[(at, _note(run, at, key, write(value))) for at, value in points],
        top=Axis.over([0, 1], "epsilon spent") if ticks else None,
        top_ticks=ticks,
        below=_numbers(run) if share else None,
    )


def _tick(value: float, share: bool) -> str:
    return f"{100 * value:.4g}{numerals.SPACE}%" if share else numerals.rounded(value)


def _note(run: RunSnapshot, at: float, key: str, value: str) -> str:
    spent = dict(values(run.evaluations, "epsilon")).get(at)
    tail = "" if spent is None else f", epsilon {numerals.epsilon(spent)}"
    return f"{unit(run.evaluations)} {at:.4g}: {key} {value}{tail}"


def _accuracy(run: RunSnapshot) -> Html | None:
    explanation = f"Share of correct predictions on {records_of(run)}."
    return _curve(run, "accuracy", "Accuracy", explanation, share=True, colour=0)


def _loss(run: RunSnapshot) -> Html | None:
    explanation = "Mean loss on the same records. It may rise together with the accuracy."
    return _curve(run, "loss", "Evaluation loss", explanation, share=False, colour=1)


def _numbers(run: RunSnapshot) -> Html:
    rows = [
        [
            f"{line.get('epoch', 0):.4g}",
            numerals.count(line.get("step", 0)),
            _written(line.get("accuracy"), lambda v: numerals.percent(v, 2)),
            _written(line.get("loss"), numerals.rounded),
            _written(line.get("epsilon"), numerals.epsilon),
        ]
        for line in run.evaluations
    ]
    head = ["epoch", "step", "accuracy", "loss", "epsilon"]
    return unfold("Numbers", table(head, rows, caption="Evaluations"))


def _written(value: Any, write: Any) -> str:
    known = number(value)
    return "" if known is None else write(known)


def _scale(run: RunSnapshot) -> Html | None:
    """The scale that an adaptive rule learned, which was released with noise."""
    points = values(run.steps, "scale")
    if len(points) < 2 or len({value for _, value in points}) == 1:
        return None
    x = time_axis(points, name=unit(run.steps))
    y = Axis.over([value for _, value in points], "scale s")
    return plots.plot(
        x,
        y,
        [plots.line(x, y, points, colour=3)],
        title="Learned scale",
        explanation="The gradient norm that the rule treats as 1, learned from noisy counts in the "
        "first steps. It was paid for from the budget and may be published.",
        description=f"from {numerals.rounded(points[0][1])} to {numerals.rounded(points[-1][1])}.",
        notes=[(at, f"{x.label} {at:.4g}: scale {value:.4g}") for at, value in points],
    )
