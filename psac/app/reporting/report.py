"""Writes a report about run folders: what was trained, how well and how privately.

    psac.reporting.report("runs/mnist")                     # -> runs/mnist/report.html
    psac.reporting.report(["runs/a", "runs/b"], "both.html")
    psac.reporting.report("runs/mnist", publish=True)       # -> runs/mnist/report-public.html

The page is one file without scripts, external fonts or network access; its policy forbids them.

Guarantees: with `publish=True`, the page is made from `publishing.published` alone, so it holds
nothing that was computed from private records without noise.  Otherwise such parts are marked: the
accuracy at the top, and one section.  The same folders give the same bytes.  A run that was killed
can be reported; a folder that is not a run raises `NoRun`.  Left to the user: whether test records
are really public if the recipe says so, and whether the settings were tuned on private records.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from psac.app.reporting.comparison import compare, title
from psac.app.reporting.diagnostics import diagnostics
from psac.app.reporting.guarantee import Meaning
from psac.app.reporting.head import head
from psac.app.reporting.html import Html, element, join
from psac.app.reporting.learning_curves import learning_curves
from psac.app.reporting.mistakes import mistakes
from psac.app.reporting.privacy_card import card
from psac.app.reporting.publishing import published
from psac.app.reporting.reproduction import reproduction
from psac.app.reporting.snapshot import RunSnapshot, read
from psac.app.reporting.style import STYLE
from psac.checkpoint.saving import write_atomically

PathLike = str | os.PathLike[str]
LEFT_OUT = (
    " This report leaves out what was computed from private records without noise: training "
    "losses, norms, weights, batch sizes, times, and results on records that nobody stated to be "
    "public."
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def report(
    folders: PathLike | Iterable[PathLike],
    output: PathLike | None = None,
    publish: bool = False,
) -> Path:
    """Writes the page of one run, or of several side by side, and returns where it is.

    `output` is a file or a folder; by default the page is in the run's folder, or in the folder
    that holds all runs.  `publish` leaves out what may not be shown to others.
    """
    single = isinstance(folders, str | os.PathLike)
    paths = [Path(folders)] if single else [Path(folder) for folder in folders]
    _refuse(paths)
    runs = [read(path) for path in paths]
    if len(runs) == 1:
        page = _single(runs[0], publish)
    else:
        page = _document(title(runs), compare(runs, publish=publish))
    target = _target(paths, output, "report-public.html" if publish else "report.html")
    write_atomically(target, page.encode())
    return target


def _refuse(paths: Sequence[Path]) -> None:
    if not paths:
        raise ValueError("folders is empty: pass the folder of a run, or several.")
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise ValueError(f"the folder '{path}' is listed twice. Pass each run once.")
        seen.add(path.resolve())


def _target(paths: Sequence[Path], output: PathLike | None, name: str) -> Path:
    if output is None:
        return Path(os.path.commonpath([path.resolve() for path in paths])) / name
    given = Path(output)
    return given / name if given.is_dir() else given


def _single(run: RunSnapshot, publish: bool) -> Html:
    """The page to publish is made from `shown` alone."""
    shown = published(run)
    ledger = run.ledger
    meaning = Meaning.of(ledger) if ledger is not None and ledger.entries else None
    hidden = [learning_curves(run), mistakes(run)] if run.on_private_records else []
    return _document(
        run.title,
        [
            head(shown, meaning, owner=None if publish else run),
            card(shown),
            learning_curves(shown) if publish or not hidden else None,
            mistakes(shown if publish or hidden else run),
            reproduction(shown if publish else run),
            None if publish else diagnostics(run, *hidden),
            _foot(run, publish),
        ],
    )


def _foot(run: RunSnapshot, publish: bool) -> Html:
    written = run.environment.get("versions")
    version = written.get("psac") if isinstance(written, dict) else None
    by = f"psac {version}" if version else "psac"
    return element("footer", f"Trained with {by}.{LEFT_OUT if publish else ''}")


def _document(name: str, parts: Sequence[Html | None]) -> Html:
    about = join(
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{name} \N{MIDDLE DOT} psac"),
        element("style", Html(STYLE)),
    )
    body = element("body", element("main", *parts))
    return join(Html("<!doctype html>\n"), element("html", element("head", about), body, lang="en"))
