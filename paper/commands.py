"""The commands of `python -m paper`; paper/README.md lists them.

What was computed before is kept.  A command that was stopped goes on with the run that it was at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.markdown import Markdown

from psac.app.cli.app import run
from psac.app.cli.console import as_typed, console
from psac.app.cli.error_messages import typed
from psac.app.cli.options import Processes
from psac.app.cli.several_runs import trained
from psac.checks import unknown

if TYPE_CHECKING:
    from paper.figures.exhibit import Exhibit
    from paper.tables.row import Row
    from paper.tables.study import Study

Results = Annotated[
    Path,
    typer.Option(help="The folder of all results, with paper/, theory/ and table2/ in it."),
]
Docs = Annotated[Path, typer.Option(help="Where the page goes.")]
RESULTS, DOCS = Path("results"), Path("docs")
HELP = {
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
        from paper.figures.catalogue import FIGURES

        make_and_show([FIGURES[name]], results / "paper")

    command.__doc__ = HELP[name]
    return command


def theory(results: Results = RESULTS) -> None:
    """Weights, what does not vanish in the bounds (Table 1), and bounds beside the truth."""
    from paper.figures.catalogue import THEORY

    make_and_show(THEORY.values(), results / "theory")


Rows = Annotated[
    list[str] | None,
    typer.Option("--row", help="Only this row; may be repeated. Some need your own data."),
]
Rules = Annotated[
    list[str] | None, typer.Option("--rule", help="Only this column; may be repeated.")
]
Runs = Annotated[
    Path | None, typer.Option(help="Where the runs go. Default: runs/ and the name of the table.")
]
DataRoot = Annotated[
    Path | None, typer.Option(help="Folder of the row's data files, such as CelebA's.")
]
WriteOnly = Annotated[
    bool, typer.Option("--write-only", help="Train nothing; only write the table again.")
]


def table2(
    rows: Rows = None,
    rules: Rules = None,
    results: Results = RESULTS,
    runs: Runs = None,
    data_root: DataRoot = None,
    processes: Processes = 2,
    write_only: WriteOnly = False,
) -> None:
    """Table 2: DP-SGD, Auto-S, DP-PSAC and AdaptivePSAC. Takes hours, and may be stopped."""
    from paper.tables.table2 import TABLE2, TITLE

    table = Table(TABLE2, TITLE, results / "table2", runs or Path("runs/table2"))
    fill(table, rows, rules, data_root, processes=0 if write_only else processes)


def table3(
    rows: Rows = None,
    rules: Rules = None,
    results: Results = RESULTS,
    runs: Runs = None,
    data_root: DataRoot = None,
    weights: Annotated[
        Path | None, typer.Option(help="Folder of the row's model, such as roberta-base.")
    ] = None,
    processes: Processes = 1,
    write_only: WriteOnly = False,
) -> None:
    """Table 3: language models on sentences. Takes hours or days, and may be stopped."""
    from paper.tables.table3 import TABLE3, TITLE

    table = Table(TABLE3, TITLE, results / "table3", runs or Path("runs/table3"))
    fill(table, rows, rules, data_root, weights, processes=0 if write_only else processes)


def e2e(
    data: Annotated[Path, typer.Option(help="e2e-dataset.zip of the E2E NLG challenge.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")] = 8.0,
    not_private: Annotated[
        bool, typer.Option("--not-private", help="Train without clipping and noise.")
    ] = False,
    epochs: Annotated[float, typer.Option(help="Length of training.")] = 10.0,
    results: Results = RESULTS,
    runs: Annotated[Path, typer.Option(help="Where checkpoints go.")] = Path("runs/e2e"),
) -> None:
    """Texts from facts: a small GPT-2 on E2E NLG, by perplexity and BLEU. Takes hours."""
    from paper.generation.e2e import checked
    from paper.generation.study import Settings, run

    with typed():
        archive = checked(data)
    settings = Settings(epsilon=None if not_private else epsilon, epochs=epochs)
    path = run(archive, settings, results / "e2e", runs)
    console.print(f"The result: [bold]{as_typed(path)}[/]", soft_wrap=True)


class Table(NamedTuple):
    """Its rows and title, where its results go, and its runs."""

    rows: Mapping[str, Row]
    title: str
    folder: Path
    runs: Path


def fill(
    table: Table,
    rows: list[str] | None,
    rules: list[str] | None,
    data_root: Path | None,
    weights: Path | None = None,
    *,
    processes: int,
) -> None:
    """Makes the runs that are missing, by so many processes, and writes the table."""
    from paper.tables.markdown import write_table
    from paper.tables.study import studies
    from psac.app.training.splits import load_splits

    whole, failed = studies(table.rows, table.folder, table.runs), False
    with typed():
        selection = [study.on(data_root, weights) for study in _selected(whole, rows)]
        selection = [study.only(rules) if rules else study for study in selection]
    for study in selection if processes else []:
        if not study.row.run_here:
            load_splits(study.any_recipe())  # says once, not in each run, what is missing
        for stage, jobs in study.stages():
            title = f"{study.row.title}, {stage}"
            done = trained(jobs, title=title, processes=processes, train=study.train)
            failed = failed or not done
            write_table(whole, table.folder, table.title)
    page = write_table(whole, table.folder, table.title)
    console.print(f"The table: [bold]{as_typed(page)}[/]", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _selected(table: list[Study], names: list[str] | None) -> list[Study]:
    """The rows of these names; without names, those whose data anybody can have."""
    known = {study.row.name: study for study in table}
    for name in names or []:
        if name not in known:
            raise ValueError(unknown("row", name, known))
    return [known[name] for name in names or known if names or known[name].row.run_here]


def adult() -> None:
    """The table of Adult in docs/guides/tabular.md, from results/adult. Half an hour."""
    from paper.adult import write_page

    write_page()


def everything(results: Results = RESULTS, docs: Docs = DOCS) -> None:
    """All figures, the pictures of the theory, and the page; not the tables, which take hours."""
    from paper.figures.catalogue import FIGURES, THEORY

    make_and_show(THEORY.values(), results / "theory")
    make_and_show(FIGURES.values(), results / "paper")
    page(results, docs)


def page(results: Results = RESULTS, docs: Docs = DOCS) -> None:
    """The page docs/paper.md: our results beside the paper's, from the result files alone."""
    from paper.claims.page import write_page

    with typed():
        if not any((results / part).is_dir() for part in ("paper", "theory", "table2")):
            raise ValueError(
                f"{results} has no results: give the folder that paper/, theory/ or table2/ is in, "
                "or make some with `python -m paper fig2`."
            )
    console.print(f"The page: [bold]{as_typed(write_page(results, docs))}[/]")


def make_and_show(exhibits: Iterable[Exhibit], results: Path) -> None:
    """Makes the exhibits and prints their captions."""
    from paper.figures.exhibit import make

    for exhibit in exhibits:
        try:
            with console.status(exhibit.title) as status:
                files = make(exhibit, results, note=status.update)
        except KeyboardInterrupt:
            console.print(f"What was finished is kept. To go on: [bold]{exhibit.command}[/]")
            raise
        folder = results / exhibit.name
        console.print(Markdown((folder / "caption.md").read_text()))
        console.print(f"\n{len(files)} files in [bold]{folder}[/]\n")


COMMANDS: dict[str, Callable[..., None]] = {
    **{name: figure(name) for name in HELP},
    "theory": theory,
    "table2": table2,
    "table3": table3,
    "e2e": e2e,
    "adult": adult,
    "all": everything,
    "page": page,
}


def assembled() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        help="The figures and tables of the DP-PSAC paper, reproduced.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, function in COMMANDS.items():
        app.command(name)(function)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line; errors become messages and exit codes."""
    run(assembled(), "python -m paper", arguments)
