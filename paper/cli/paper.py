"""`psac paper fig1` to `fig6`, `all` and `page`: the paper's figures made anew, and the comparison.

What was computed before is kept; a figure that was stopped goes on with the run that it was at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown

from psac.app.cli.console import as_typed, console
from psac.app.cli.error_messages import typed

if TYPE_CHECKING:
    from paper.experiments.exhibit import Exhibit

Results = Annotated[
    Path, typer.Option(help="The folder of all results: paper/, theory/ and table2/ are in it.")
]
RESULTS = Path("results")
TITLES = {
    "fig1": "Cosine of sample gradients to the batch mean, by norm: MNIST. Minutes.",
    "fig2": "The weights of DP-PSAC and Auto-S. Seconds.",
    "fig3": "Cosine of the weighted to the true batch mean, 15 runs. A quarter of an hour.",
    "fig4": "Accuracy over rule setting and learning rate, 225 runs. Half an hour.",
    "fig5": "The lazy region. Seconds.",
    "fig6": "As fig1, on Fashion-MNIST and features of CIFAR-10. Minutes.",
}


def figure(name: str) -> Callable[..., None]:
    """The command of one figure."""

    def command(results: Results = RESULTS) -> None:
        from paper.experiments.figures import FIGURES

        shown([FIGURES[name]], results / "paper")

    command.__doc__ = TITLES[name]
    return command


def everything(
    results: Results = RESULTS,
    docs: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("docs"),
) -> None:
    """All figures, the plots of the theory and the page; table2, which takes hours, is apart."""
    from paper.experiments.figures import FIGURES, THEORY

    shown(THEORY.values(), results / "theory")
    shown(FIGURES.values(), results / "paper")
    page(results, docs)


def page(
    results: Results = RESULTS,
    docs: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("docs"),
) -> None:
    """Our results beside the paper's, claim by claim, from the result files alone."""
    from paper.experiments.page import write_page

    with typed():
        if not any((results / part).is_dir() for part in ("paper", "theory", "table2")):
            raise ValueError(
                f"{results} has no results: give the folder that paper/, theory/ or table2/ is in, "
                "or make some by `psac paper fig2`."
            )
    console.print(f"The page: [bold]{as_typed(write_page(results, docs))}[/]")


def shown(exhibits: Iterable[Exhibit], results: Path) -> None:
    """Makes the exhibits and prints what they say."""
    from paper.experiments.exhibit import make

    for exhibit in exhibits:
        try:
            with console.status(exhibit.title) as status:
                written = make(exhibit, results, note=status.update)
        except KeyboardInterrupt:
            console.print(f"What was finished is kept. To go on: [bold]{exhibit.command}[/]")
            raise
        folder = results / exhibit.name
        console.print(Markdown((folder / "caption.md").read_text()))
        console.print(f"\n{len(written)} files in [bold]{folder}[/]\n")
