"""Run folders in, one page out: what was trained, how well, how privately.

    psac.reporting.report("runs/mnist")                     # -> runs/mnist/report.html
    psac.reporting.report(["runs/a", "runs/b"], "both.html")
    psac.reporting.report("runs/mnist", publish=True)       # -> runs/mnist/report-public.html

The page is one file: no network, no script, no font from elsewhere; its own policy forbids them.

Guarantees: with `publish=True` the page is made of `Run.published` alone, which lists what may be
shown; nothing that was computed from private records without noise is in that.  Without it, all of
that is marked: the accuracy at the top, and one section.  The same folders give the
same bytes.  A run that was killed can be reported; a folder that is no run raises `NoRun`.
Left to others: whether test records are public where somebody said so, and whether the settings
were tuned on private ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from psac.app.reporting.card import card
from psac.app.reporting.comparing import compare, title
from psac.app.reporting.guarantee import Meaning
from psac.app.reporting.head import head
from psac.app.reporting.html import Html, element, join
from psac.app.reporting.inside import inside
from psac.app.reporting.learning import learning
from psac.app.reporting.mistakes import mistakes
from psac.app.reporting.repeating import repeating
from psac.app.reporting.runs import Run, read
from psac.app.reporting.style import STYLE
from psac.checkpoint.saving import write_atomically

PathLike = str | os.PathLike[str]
LEFT_OUT = (
    " What was computed from private records without noise is left out: training losses, norms, "
    "weights, batch sizes, times, and all results on records that nobody called public."
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
            raise ValueError(f"the folder '{path}' was given twice: pass each run once.")
        seen.add(path.resolve())


def _target(paths: Sequence[Path], output: PathLike | None, name: str) -> Path:
    if output is None:
        return Path(os.path.commonpath([path.resolve() for path in paths])) / name
    given = Path(output)
    return given / name if given.is_dir() else given


def _single(run: Run, publish: bool) -> Html:
    """The page to publish is made from `shown` alone."""
    shown = run.published()
    ledger = run.ledger
    meaning = Meaning.of(ledger) if ledger is not None and ledger.entries else None
    hidden = [learning(run), mistakes(run)] if run.on_private_records else []
    return _document(
        run.title,
        [
            head(shown, meaning, owner=None if publish else run),
            card(shown),
            learning(shown) if publish or not hidden else None,
            mistakes(shown if publish or hidden else run),
            repeating(shown if publish else run),
            None if publish else inside(run, *hidden),
            _foot(run, publish),
        ],
    )


def _foot(run: Run, publish: bool) -> Html:
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
