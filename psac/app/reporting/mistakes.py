"""The mistakes of the model: accuracy of each class, confusions, examples.

All of it is computed from the evaluation records, so it may be published only if these are public.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from psac.app.reporting import numerals
from psac.app.reporting.head import records_of
from psac.app.reporting.html import Html, element, table, unfold
from psac.app.reporting.snapshot import RunSnapshot, number
from psac.app.reporting.thumbnails import thumbnail

MOST_CLASSES = 20  # of a matrix that can be read
MOST_EXAMPLES = 48
MOST_PAIRS = 10

Matrix = Sequence[Sequence[int]]


def mistakes(run: RunSnapshot) -> Html | None:
    """The section; None if the run has no data for it."""
    matrix = _matrix(run)
    shown = [_classes(run, matrix), _confusion(run, matrix), _examples(run)]
    figures = [figure for figure in shown if figure is not None]
    if not figures:
        return None
    return element(
        "section",
        element("h2", "Mistakes"),
        element("p", "On the same records as the accuracy above.", class_="about"),
        element("div", figures, class_="grid"),
        id="mistakes",
    )


def _matrix(run: RunSnapshot) -> Matrix | None:
    """Rows are true classes, columns predictions."""
    matrix = run.summary.get("confusion_matrix")
    square = isinstance(matrix, list) and all(
        isinstance(row, list) and len(row) == len(matrix) for row in matrix
    )
    return matrix if square and matrix else None


def name_of(run: RunSnapshot, label: Any) -> str:
    names = run.summary.get("classes")
    if isinstance(names, list) and isinstance(label, int) and 0 <= label < len(names):
        return str(names[label])
    return str(label)


def _accuracies(run: RunSnapshot, matrix: Matrix | None) -> list[tuple[str, float]]:
    written = run.summary.get("per_class_accuracy")
    if isinstance(written, dict):
        pairs = list(written.items())
    elif isinstance(written, list):
        pairs = list(enumerate(written))
    elif matrix is not None:
        pairs = [(i, row[i] / sum(row) if sum(row) else None) for i, row in enumerate(matrix)]
    else:
        pairs = []
    known = [(name_of(run, label), number(value)) for label, value in pairs]
    return [(name, value) for name, value in known if value is not None]


def _classes(run: RunSnapshot, matrix: Matrix | None) -> Html | None:
    accuracies = _accuracies(run, matrix)
    if not accuracies:
        return None
    bars = [
        element(
            "tr",
            element("th", name, scope="row"),
            element(
                "td", element("div", element("i", style=f"width:{100 * value:.1f}%"), class_="bar")
            ),
            element("td", numerals.percent(value), class_="number"),
        )
        for name, value in accuracies
    ]
    low, high = (end(accuracies, key=lambda pair: pair[1]) for end in (min, max))
    chart = element(
        "table",
        element("caption", "Accuracy of each class"),
        element("tbody", bars),
        class_="bars",
    )
    heading = element(
        "figcaption",
        element("h3", "Accuracy of each class"),
        element(
            "p",
            f"From {numerals.percent(low[1])} ({low[0]}) to {numerals.percent(high[1])} "
            f"({high[0]}). Noise and clipping affect rare and difficult classes most.",
        ),
    )
    return element("figure", heading, element("div", chart, class_="body"))


def _pairs(run: RunSnapshot, matrix: Matrix) -> list[list[str]]:
    """The most frequent confusions."""
    shares = [
        (row[j] / sum(row), row[j], i, j)
        for i, row in enumerate(matrix)
        for j in range(len(row))
        if i != j and row[j]
    ]
    shares.sort(key=lambda pair: (-pair[0], pair[2], pair[3]))
    return [
        [name_of(run, i), name_of(run, j), numerals.count(times), numerals.percent(share)]
        for share, times, i, j in shares[:MOST_PAIRS]
    ]


def _confusion(run: RunSnapshot, matrix: Matrix | None) -> Html | None:
    if matrix is None:
        return None
    pairs = _pairs(run, matrix)
    listing = table(
        ["true class", "predicted", "count", "share of the class"],
        pairs,
        caption="Most frequent confusions",
        texts=["predicted"],
    )
    if len(matrix) > MOST_CLASSES:
        title = element("figcaption", element("h3", "Most frequent confusions"))
        return element("figure", title, listing)
    worst = (
        f"The most frequent confusion is {pairs[0][1]} for {pairs[0][0]} ({pairs[0][3]})"
        if pairs
        else ""
    )
    heading = element(
        "figcaption",
        element("h3", "Confusion matrix"),
        element("p", "Rows are true classes, columns are predictions, in percent of the row."),
    )
    grid = element(
        "div",
        _grid(run, matrix),
        role="img",
        aria_label=f"Confusion matrix. {worst}.",
        class_="body",
    )
    return element("figure", heading, grid, unfold("The most frequent mistakes", listing))


def _grid(run: RunSnapshot, matrix: Matrix) -> Html:
    names = [name_of(run, i) for i in range(len(matrix))]
    head = [
        element("th", "predicted \N{RIGHTWARDS ARROW} true \N{DOWNWARDS ARROW}", class_="corner"),
        *[element("th", element("span", name), title=name) for name in names],
    ]
    rows = [
        element("tr", element("th", names[i], title=names[i]), _cells(row, i, names))
        for i, row in enumerate(matrix)
    ]
    return element(
        "table", element("thead", element("tr", head)), element("tbody", rows), class_="matrix"
    )


def _cells(row: Sequence[int], true: int, names: Sequence[str]) -> list[Html]:
    total = sum(row)
    cells = []
    for predicted, times in enumerate(row):
        share = times / total if total else 0.0
        # A mistake of 12 % is as dark as a hit of 100 %, because readers look for mistakes.
        depth = share if predicted == true else min(1.0, 8 * share)
        cells.append(
            element(
                "td",
                f"{100 * share:.0f}" if share > 0.005 else "",
                class_="hit" if predicted == true else "miss",
                style=f"--share:{45 * depth:.0f}%",  # light enough to read the text
                title=f"{names[true]}, predicted {names[predicted]}: {times} of {total}",
            )
        )
    return cells


def _examples(run: RunSnapshot) -> Html | None:
    if not run.mistakes:
        return None
    shown = run.mistakes[:MOST_EXAMPLES]
    heading = element(
        "figcaption",
        element("h3", "Examples of mistakes"),
        element(
            "p",
            f"{_capital(records_of(run))} with the prediction and its confidence. Records are "
            "numbered from 1.",
        ),
    )
    if not any("pixels" in row or "text" in row for row in shown):
        return element("figure", heading, _listing(run, shown), class_="wide")
    items = [_example(run, row) for row in shown]
    return element("figure", heading, element("ul", items, class_="mistakes"), class_="wide")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _listing(run: RunSnapshot, rows: Sequence[Mapping[str, Any]]) -> Html:
    """Mistakes without an image or a text."""
    cells = [
        [str(row.get("record")), name_of(run, row.get("prediction")),
         name_of(run, row.get("label")), _confidence(row)]
        for row in rows
    ]  # fmt: skip
    titles = ["test record", "predicted", "true class", "confidence"]
    listing = table(titles, cells, caption="Examples of mistakes", texts=titles[1:3])
    return unfold(numerals.plural(len(rows), "mistake"), listing)


def _confidence(row: Mapping[str, Any]) -> str:
    confidence = number(row.get("confidence"))
    return "" if confidence is None else numerals.percent(confidence, 0)


def _example(run: RunSnapshot, row: Mapping[str, Any]) -> Html:
    true, predicted = name_of(run, row.get("label")), name_of(run, row.get("prediction"))
    words = f"test record {row.get('record')}: {true}, predicted {predicted}"
    picture = thumbnail(row.get("pixels"), words)
    return element(
        "li",
        picture,
        element("q", str(row["text"])[:200]) if "text" in row else None,
        element("div", "predicted ", element("b", predicted), f" {_confidence(row)}"),
        element("div", f"true class {true}"),
    )
