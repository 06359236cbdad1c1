"""`psac compare`: clipping rules on one budget, several runs each, with error bars and tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from psac.app.cli import names
from psac.app.cli.console import console
from psac.app.cli.crowd import say_where, trained
from psac.app.cli.mistakes import typed
from psac.app.cli.options import Processes, RecipeName, made_from_options
from psac.app.cli.progress import price
from psac.app.cli.settings import loaded, settings
from psac.app.cli.together import price_of_all

if TYPE_CHECKING:
    from psac.app.reporting.statistics import Comparison, Group
    from psac.app.training import Job, Recipe

RULES = ["psac", "abadi", "auto_s"]
OF_A_RULE = ("r", "bound", "scale", "learning_rate")


@made_from_options(settings=settings)
def compare(
    recipe: RecipeName,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="A rule, with settings of its own after a colon: auto_s:r=0.01,learning_rate=2. "
            f"Repeat for more. {names.one_of(names.choices_of('rule'))}",
            show_default=", ".join(RULES),
            autocompletion=names.completer(names.choices_of("rule")),
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each rule.", min=1)] = 3,
    folder: Annotated[
        Path | None, typer.Option(help="Where the runs go. Default: runs/compare-NAME.")
    ] = None,
    processes: Processes = 2,
    *,
    settings: dict[str, Any],
) -> None:
    """Compare clipping rules on one budget: error bars, Welch's test, a page.

    With --seed S the runs have the seeds S, S + 1, ... and can be repeated; without, they are
    private. The same command goes on where it was stopped.
    """
    place = folder or Path("runs") / f"compare-{Path(recipe).stem}"
    with typed():
        jobs = _jobs(recipe, rule or RULES, repeats, settings, place)
        _refuse_another_comparison(jobs, place)
    if not trained(jobs, title="runs", processes=processes):
        raise typer.Exit(1)
    _tell(jobs, place)


def _jobs(
    name: str, rules: list[str], repeats: int, settings: dict[str, Any], place: Path
) -> list[Job]:
    """All rules once, then all of them again."""
    from psac.app.training import Job

    for text in rules:
        if rules.count(text) > 1:
            raise ValueError(f"--rule {text} is given twice. For more runs of it: --repeats.")
    wanted = [(text.replace(":", "-").replace(",", "-"), _of_rule(text)) for text in rules]
    return [
        Job(_recipe(name, settings | own, repeat), place / f"{label}-{repeat + 1}")
        for repeat in range(repeats)
        for label, own in wanted
    ]


def _refuse_another_comparison(jobs: list[Job], place: Path) -> None:
    """Before the first run: half of a comparison in the folder of another one is of no use."""
    from psac.app.training import Run

    for job in jobs:
        run = Run(job.folder)
        differences = run.recipe().differences(job.recipe) if run.started else []
        if differences:
            raise ValueError(
                f"{place} holds another comparison: {job.folder.name} was started with other "
                f"settings ({'; '.join(differences)}). Give the settings of then, or take another "
                "--folder. Nothing was trained."
            )


def _of_rule(text: str) -> dict[str, Any]:
    """`auto_s:r=0.01` as settings of a recipe."""
    rule, _, rest = text.partition(":")
    own: dict[str, Any] = {"rule": rule}
    for pair in filter(None, rest.split(",")):
        name, _, value = pair.partition("=")
        if name not in OF_A_RULE:
            raise ValueError(f"--rule {text}: '{name}' is none of {', '.join(OF_A_RULE)}.")
        try:
            own[name] = float(value)
        except ValueError as error:
            raise ValueError(f"--rule {text}: {name} is '{value}', not a number.") from error
    return own


def _recipe(name: str, settings: dict[str, Any], repeat: int) -> Recipe:
    from psac.app.training.splits import refuse_unknown_data

    recipe = loaded(name, settings)
    refuse_unknown_data(recipe)
    if recipe.seed is None:
        return recipe
    return loaded(name, settings | {"seed": recipe.seed + repeat})


def _tell(jobs: list[Job], place: Path) -> None:
    """Tables in the terminal, a JSON file, a page."""
    from psac.app.reporting import report
    from psac.app.reporting.runs import read
    from psac.app.reporting.statistics import comparisons, groups
    from psac.app.training.run import write_json

    runs = [read(job.folder) for job in jobs]
    found = groups(runs)
    tests = comparisons(found)
    console.print(_results(found), _tests(tests) if tests else "One run each is no test.")
    total = price_of_all(runs)
    console.print(total.sentence)
    write_json(place / "compare.json", {**_facts(found, tests), "price": total.to_json()})
    page = report([job.folder for job in jobs], output=place / "report.html")
    say_where(place / "compare.json", page)


def _results(found: list[Group]) -> Table:
    table = Table("rule", title="One budget")
    for column in ("runs", "accuracy", "epsilon"):
        table.add_column(column, justify="right")
    for group in sorted(found, key=lambda group: -(group.mean or 0)):
        spread = "" if group.deviation is None else f" ± {group.deviation:.2%}"
        mean = "" if group.mean is None else f"{group.mean:.2%}{spread}"
        table.add_row(group.label, f"{len(group.runs)}", mean, price(group.epsilon))
    return table


def _tests(tests: list[Comparison]) -> Table:
    table = Table("difference of", title="Welch's test")
    for column in ("accuracy", "95 % interval", "p", "p (Holm)"):
        table.add_column(column, justify="right")
    for test in tests:
        table.add_row(
            f"{test.first.label} - {test.second.label}",
            f"{test.difference:+.2%}",
            f"{test.low:+.2%} to {test.high:+.2%}",
            f"{test.p:.3g}",
            f"{test.holm:.3g}",
        )
    return table


def _facts(found: list[Group], tests: list[Comparison]) -> dict[str, Any]:
    """For compare.json."""
    return {
        "rules": [
            {
                "label": group.label,
                "recipe": dict(group.runs[0].recipe),
                "runs": [run.name for run in group.runs],
                "accuracies": group.accuracies,
                "mean": group.mean,
                "deviation": group.deviation,
                "epsilon": group.epsilon,
            }
            for group in found
        ],
        "tests": [
            {
                "first": test.first.label,
                "second": test.second.label,
                "difference": test.difference,
                "interval": [test.low, test.high],
                "p": test.p,
                "p_holm": test.holm,
            }
            for test in tests
        ],
    }
