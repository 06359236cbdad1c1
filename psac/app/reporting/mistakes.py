"""Where the model errs: accuracy of each class, what is taken for what, examples.

All of it is computed from evaluation data: to be shown only where those are public.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from psac.app.reporting import numerals
from psac.app.reporting.head import records_of
from psac.app.reporting.html import Html, element, table, unfold
from psac.app.reporting.runs import Run, number
from psac.app.reporting.thumbnails import thumbnail

MOST_CLASSES = 20  # of a matrix that can be read
MOST_EXAMPLES = 48
MOST_PAIRS = 10

Matrix = Sequence[Sequence[int]]


def mistakes(run: Run) -> Html | None:
    """A section, or nothing if the run has written nothing about it."""
    matrix = _matrix(run)
    shown = [_classes(run, matrix), _confusion(run, matrix), _examples(run)]
    figures = [figure for figure in shown if figure is not None]
    if not figures:
        return None
    return element(
        "section",
        element("h2", "Where it errs"),
        element("p", "By class, on the same records as the accuracy above.", class_="about"),
        element("div", figures, class_="grid"),
        id="mistakes",
    )


def _matrix(run: Run) -> Matrix | None:
    """Rows are true classes, columns predictions."""
    matrix = run.summary.get("confusion_matrix")
    square = isinstance(matrix, list) and all(
        isinstance(row, list) and len(row) == len(matrix) for row in matrix
    )
    return matrix if square and matrix else None


def name_of(run: Run, label: Any) -> str:
    names = run.summary.get("classes")
    if isinstance(names, list) and isinstance(label, int) and 0 <= label < len(names):
        return str(names[label])
    return str(label)


def _accuracies(run: Run, matrix: Matrix | None) -> list[tuple[str, float]]:
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


def _classes(run: Run, matrix: Matrix | None) -> Html | None:
    found = _accuracies(run, matrix)
    if not found:
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
        for name, value in found
    ]
    low, high = min(found, key=lambda p: p[1]), max(found, key=lambda p: p[1])
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
            f"({high[0]}). Noise and clipping hurt rare and difficult classes most.",
        ),
    )
    return element("figure", heading, element("div", chart, class_="body"))


def _pairs(run: Run, matrix: Matrix) -> list[list[str]]:
    """What is most often taken for what."""
    found = [
        (row[j] / sum(row), row[j], i, j)
        for i, row in enumerate(matrix)
        for j in range(len(row))
        if i != j and row[j]
    ]
    found.sort(key=lambda pair: (-pair[0], pair[2], pair[3]))
    return [
        [name_of(run, i), name_of(run, j), numerals.count(times), numerals.percent(share)]
        for share, times, i, j in found[:MOST_PAIRS]
    ]


def _confusion(run: Run, matrix: Matrix | None) -> Html | None:
    if matrix is None:
        return None
    pairs = _pairs(run, matrix)
    listing = table(
        ["true", "taken for", "times", "of the class"],
        pairs,
        caption="What is most often taken for what",
        texts=["taken for"],
    )
    if len(matrix) > MOST_CLASSES:
        title = element("figcaption", element("h3", "What is taken for what, most often"))
        return element("figure", title, listing)
    worst = f"{pairs[0][0]} is taken for {pairs[0][1]} most ({pairs[0][3]})" if pairs else ""
    heading = element(
        "figcaption",
        element("h3", "Confusion matrix"),
        element("p", "Each row is a true class: where its records went, in percent."),
    )
    grid = element(
        "div",
        _grid(run, matrix),
        role="img",
        aria_label=f"Confusion matrix. {worst}.",
        class_="body",
    )
    return element("figure", heading, grid, unfold("The most frequent mistakes", listing))


def _grid(run: Run, matrix: Matrix) -> Html:
    names = [name_of(run, i) for i in range(len(matrix))]
    head = [
        element("th", "said \N{RIGHTWARDS ARROW} is \N{DOWNWARDS ARROW}", class_="corner"),
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
    for said, times in enumerate(row):
        share = times / total if total else 0.0
        # A mistake of 12 % is as dark as a hit of 100 %: they are what one looks for.
        depth = share if said == true else min(1.0, 8 * share)
        cells.append(
            element(
                "td",
                f"{100 * share:.0f}" if share > 0.005 else "",
                class_="hit" if said == true else "miss",
                style=f"--share:{45 * depth:.0f}%",  # so light that the text can be read
                title=f"{names[true]}, said to be {names[said]}: {times} of {total}",
            )
        )
    return cells


def _examples(run: Run) -> Html | None:
    if not run.mistakes:
        return None
    shown = run.mistakes[:MOST_EXAMPLES]
    heading = element(
        "figcaption",
        element("h3", "Examples of mistakes"),
        element(
            "p",
            f"{_capital(records_of(run))}, with what the model said and how sure it was. Records "
            "count from 1.",
        ),
    )
    if not any("pixels" in row or "text" in row for row in shown):
        return element("figure", heading, _listing(run, shown), class_="wide")
    items = [_example(run, row) for row in shown]
    return element("figure", heading, element("ul", items, class_="mistakes"), class_="wide")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _listing(run: Run, rows: Sequence[Mapping[str, Any]]) -> Html:
    """Mistakes of which there is nothing to see."""
    cells = [
        [str(row.get("record")), name_of(run, row.get("prediction")),
         name_of(run, row.get("label")), _sure(row)]
        for row in rows
    ]  # fmt: skip
    found = table(["test record", "said", "is", "how sure"], cells, caption="Examples of mistakes",
                  texts=["said", "is"])  # fmt: skip
    return unfold(numerals.plural(len(rows), "mistake"), found)


def _sure(row: Mapping[str, Any]) -> str:
    confidence = number(row.get("confidence"))
    return "" if confidence is None else numerals.percent(confidence, 0)


def _example(run: Run, row: Mapping[str, Any]) -> Html:
    true, said = name_of(run, row.get("label")), name_of(run, row.get("prediction"))
    words = f"test record {row.get('record')}: {true}, said to be {said}"
    picture = thumbnail(row.get("pixels"), words)
    return element(
        "li",
        picture,
        element("q", str(row["text"])[:200]) if "text" in row else None,
        element("div", "said ", element("b", said), f" {_sure(row)}"),
        element("div", f"is {true}"),
    )
