"""Diagnostics of the training: losses, norms, weights, batch sizes, speed.

All of it is computed from private records without noise.  It is in a section that says so, and in
nothing that may be published.
"""

from collections.abc import Callable, Sequence
from typing import Any

from psac.app.reporting import clipping_rule, numerals, plots
from psac.app.reporting.axes import Axis
from psac.app.reporting.html import Html, element, join, table, unfold
from psac.app.reporting.learning_curves import epsilon_ticks, time_axis, unit, values
from psac.app.reporting.snapshot import RunSnapshot, number
from psac.clipping.rules import AdaptivePSAC

MOST_ROWS = 25
QUANTILES = ("5 %", "25 %", "median", "75 %", "95 %")


def diagnostics(run: RunSnapshot, *more: Html | None) -> Html:
    """The section; `more` are sections about an evaluation on private records."""
    norms = "Norms of the gradients of single records."
    weights = "The factors by which the rule multiplied the gradients."
    drawn = [
        _training_loss(run),
        _quantiles(run, "norms", "Gradient norms", "norm", 0, norms),
        _quantiles(run, "weights", "Weights", "weight", 2, weights),
        _histogram(run),
        _rule_curve(run),
        _speed(run),
        _batches(run),
    ]
    figures = [figure for figure in drawn if figure is not None]
    return not_private(
        "Computed from private records without noise, for people who may see the data. "
        "`psac report --publish` (publish=True in Python) writes a report without this section.",
        element("div", figures, class_="grid")
        if figures
        else element("p", "The run has no data for this section.", class_="note"),
        *more,
    )


def not_private(about: str, *content: Html | None) -> Html:
    """A section that is marked as not private and left out of published reports."""
    return element(
        "section",
        element("p", "Not private, do not publish", class_="kicker"),
        element("h2", "Training diagnostics"),
        element("p", about, class_="about"),
        *content,
        class_="private",
        id="diagnostics",
    )


def _series(
    run: RunSnapshot, key: str, *, title: str, explanation: str, colour: int, log: bool = False
) -> Html | None:
    points = values(run.steps, key)
    if not points:
        return None
    x = time_axis(points, name=unit(run.steps))
    y = Axis.over([value for _, value in points], key.replace("_", " "), log=log)
    first, last = (numerals.rounded(points[place][1]) for place in (0, -1))
    ticks = epsilon_ticks(run.steps) if key == "loss" else []
    return plots.plot(
        x,
        y,
        plots.trend(x, y, points, colour=colour),
        title=title,
        explanation=explanation,
        description=f"from {first} to {last}.",
        notes=[(at, f"{x.label} {at:.4g}: {numerals.rounded(value)}") for at, value in points],
        top=Axis.over([0, 1], "epsilon spent") if ticks else None,
        top_ticks=ticks,
        below=_numbers(x.label, [y.label], [[at, value] for at, value in points]),
        wide=key == "loss",
    )


def _numbers(time: str, names: Sequence[str], rows: Sequence[Sequence[float]]) -> Html:
    """A table of at most `MOST_ROWS` of the rows."""
    stride = max(1, -(-len(rows) // MOST_ROWS))
    shown = rows[::-1][::stride][::-1]
    written = [[f"{row[0]:.4g}", *(numerals.rounded(v) for v in row[1:])] for row in shown]
    return unfold("Numbers", table([time, *names], written, caption="Numbers of the plot"))


def _training_loss(run: RunSnapshot) -> Html | None:
    return _series(
        run,
        "loss",
        title="Training loss",
        explanation="Mean loss of the records in a batch.",
        colour=1,
    )


def _quantiles(
    run: RunSnapshot, key: str, title: str, name: str, colour: int, explanation: str
) -> Html | None:
    rows = quantile_rows(run, key)
    if not rows:
        return None
    x = time_axis([(row[0], 0.0) for row in rows], name=unit(run.steps))
    positive = [value for row in rows for value in row[1:] if value > 0]
    y = Axis.over(positive, name, log=True)
    outer = [(row[0], row[1], row[5]) for row in rows]
    inner = [(row[0], row[2], row[4]) for row in rows]
    middle = [(row[0], row[3]) for row in rows]
    first, last = (numerals.rounded(middle[place][1]) for place in (0, -1))
    return plots.plot(
        x,
        y,
        [
            plots.line(x, y, middle, colour=colour, label="median"),
            plots.band(x, y, inner, colour=colour, label="25 to 75 %", strength=2),
            plots.band(x, y, outer, colour=colour, label="5 to 95 %", strength=1),
        ],
        title=title,
        explanation=explanation,
        description=f"the median goes from {first} to {last}.",
        notes=[(row[0], _note(x.label, row)) for row in rows],
        below=_numbers(x.label, QUANTILES, rows),
    )


def _note(time: str, row: Sequence[float]) -> str:
    low, _, middle, _, high = (numerals.rounded(value) for value in row[1:])
    return f"{time} {row[0]:.4g}: median {middle}, 5 to 95 %: {low} to {high}"


def quantile_rows(run: RunSnapshot, key: str) -> list[list[float]]:
    """Time and the five quantiles for each step that has them."""
    time = unit(run.steps)
    rows = []
    for line in run.steps:
        statistics = line.get(key)
        five = statistics.get("quantiles") if isinstance(statistics, dict) else None
        row = [number(value) for value in [line.get(time), *(five or ())]]
        if len(row) == 6 and None not in row:
            rows.append(row)
    return rows


def _histograms(run: RunSnapshot) -> tuple[list[float], list[float], list[float]] | None:
    """Edges, and the share of norms per bin in the first and the last tenth of training."""
    histograms = [
        line["histogram"] for line in run.steps if isinstance(line.get("histogram"), dict)
    ]
    if not histograms:
        return None
    edges = histograms[-1].get("log10_norm_edges") or []
    counts = [h.get("counts") for h in histograms if h.get("log10_norm_edges") == edges]
    if len(edges) < 2 or not counts or any(len(c) != len(edges) - 1 for c in counts):
        return None
    tenth = max(1, len(counts) // 10)
    return [10.0**e for e in edges], _shares(counts[:tenth]), _shares(counts[-tenth:])


def _shares(counts: Sequence[Sequence[float]]) -> list[float]:
    sums = [float(sum(column)) for column in zip(*counts, strict=True)]
    total = sum(sums) or 1.0
    return [value / total for value in sums]


def _norm_axis(run: RunSnapshot) -> Axis | None:
    """From the first to the last bin that is not empty."""
    bins = _histograms(run)
    if bins is None:
        return None
    edges, *shares = bins
    filled = [i for i in range(len(edges) - 1) if any(share[i] > 0 for share in shares)]
    if not filled:
        return None
    return Axis.over(
        [edges[filled[0]], edges[filled[-1] + 1]], "gradient norm", log=True, tight=True
    )


def _histogram(run: RunSnapshot) -> Html | None:
    bins, x = _histograms(run), _norm_axis(run)
    if bins is None or x is None:
        return None
    edges, early, late = bins
    y = Axis.over([0.0, *early, *late], "share of records", write=_percent)
    return plots.plot(
        x,
        y,
        [
            plots.steps(x, y, edges, early, colour=5, label="first tenth of training"),
            plots.steps(x, y, edges, late, colour=0, label="last tenth"),
        ],
        title="Distribution of gradient norms",
        explanation="Distribution of the gradient norms of single records.",
        description="a histogram of norms in the first and the last tenth of training.",
        below=_numbers(
            "norm from", ["first tenth", "last tenth"], list(zip(edges, early, late, strict=False))
        ),
    )


def _percent(value: float) -> str:
    return f"{100 * value:.3g}{numerals.SPACE}%"


def _rule_curve(run: RunSnapshot) -> Html | None:
    """The weight over the range of norms that occur."""
    x = _norm_axis(run)
    if x is None:
        return None
    norms = [x.low * (x.high / x.low) ** (i / 160) for i in range(161)]
    weights = clipping_rule.curve(run, norms)
    if weights is None:
        return element("p", "psac has no curve for this rule.", class_="note")
    added = [norm * weight for norm, weight in zip(norms, weights, strict=True)]
    y = Axis.over(
        [max(v, 1e-4 * max(weights)) for v in (*weights, *added)], "weight, contribution", log=True
    )
    return plots.plot(
        x,
        y,
        [
            plots.line(x, y, zip(norms, weights, strict=True), colour=2, label="weight w(n)"),
            plots.line(x, y, zip(norms, added, strict=True), colour=3, label="contribution n w(n)"),
        ],
        title="The clipping rule over these norms",
        explanation=_rule_text(run),
        description=_peak(norms, weights),
        notes=_hints(norms, weights, added),
    )


def _rule_text(run: RunSnapshot) -> Html:
    learned = isinstance(clipping_rule.rule_of(run), AdaptivePSAC) and clipping_rule.last_scale(run)
    scale = f" with its last scale, {numerals.rounded(learned)}" if learned else ""
    return join(element("code", clipping_rule.text_of(run)), scale, ".")


def _peak(norms: Sequence[float], weights: Sequence[float]) -> str:
    best = max(range(len(norms)), key=lambda place: weights[place])
    return (
        f"the largest weight is {numerals.rounded(weights[best])}, "
        f"at the norm {numerals.rounded(norms[best])}."
    )


def _hints(*columns: Sequence[float]) -> list[tuple[float, str]]:
    write: Callable[[Any], str] = numerals.rounded
    return [
        (norm, f"norm {write(norm)}: weight {write(weight)}, contribution {write(added)}")
        for norm, weight, added in list(zip(*columns, strict=True))[::4]
    ]


def _speed(run: RunSnapshot) -> Html | None:
    total = "" if run.seconds is None else f" All steps took {numerals.duration(run.seconds)}."
    return _series(
        run,
        "samples_per_second",
        title="Throughput",
        explanation=f"Records per second.{total}",
        colour=2,
    )


def _batches(run: RunSnapshot) -> Html | None:
    expected = run.start.get("expected_batch_size")
    note = "" if expected is None else f" The expected number is {numerals.count(expected)}."
    return _series(
        run,
        "samples",
        title="Batch size",
        explanation=f"Number of records in a batch.{note}",
        colour=5,
    )
