"""`psac compare`: clipping rules at one budget, several runs each, with error bars and tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from psac.app.cli import completion
from psac.app.cli.console import console
from psac.app.cli.error_messages import typed
from psac.app.cli.options import Processes, RecipeName, with_options
from psac.app.cli.progress import price
from psac.app.cli.recipe_options import loaded, settings
from psac.app.cli.several_runs import mark_of, say_where, title_of, total_cost, trained
from psac.checks import unknown

if TYPE_CHECKING:
    from psac.app.reporting.statistics import Comparison, Group
    from psac.app.training import Job, Recipe

RULES = ["psac", "abadi", "auto_s"]
OF_A_RULE = ("r", "bound", "scale", "learning_rate")


@with_options(settings=settings)
def compare(
    recipe: RecipeName,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="Clipping rule, with its settings after a colon: auto_s:r=0.01,learning_rate=2. "
            f"Can be repeated. {completion.one_of(completion.choices_of('rule'))}",
            show_default=", ".join(RULES),
            autocompletion=completion.completer(completion.choices_of("rule")),
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Number of runs for each rule.", min=1)] = 3,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the runs. Default: runs/compare-NAME.")
    ] = None,
    processes: Processes = 2,
    *,
    settings: dict[str, Any],
) -> None:
    """Compare clipping rules at the same budget, with error bars and Welch's test.

    With --seed S, the runs use the seeds S, S + 1, ...: they are repeatable and not private. After
    an interruption, run the same command to continue.
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
    """Each rule once, then each rule again, so that a comparison that is stopped early is fair."""
    from psac.app.training import Job

    for text in rules:
        if rules.count(text) > 1:
            raise ValueError(
                f"--rule {text} is given twice. For more runs of a rule, use --repeats."
            )
    wanted = [(text.replace(":", "-").replace(",", "-"), _of_rule(text)) for text in rules]
    return [
        Job(_recipe(name, settings | own, repeat), place / f"{label}-{repeat + 1}")
        for repeat in range(repeats)
        for label, own in wanted
    ]


def _refuse_another_comparison(jobs: list[Job], place: Path) -> None:
    """Raises before the first run if the folder holds a comparison with other settings."""
    from psac.app.training import Run

    for job in jobs:
        run = Run(job.folder)
        differences = run.recipe().differences(job.recipe) if run.started else []
        if differences:
            raise ValueError(
                f"{place} holds another comparison: {job.folder.name} was started with other "
                f"settings ({'; '.join(differences)}). Use those settings or another --folder. "
                "Nothing was trained."
            )


def _of_rule(text: str) -> dict[str, Any]:
    """`auto_s:r=0.01` as settings of a recipe."""
    rule, _, rest = text.partition(":")
    own: dict[str, Any] = {"rule": rule}
    for pair in filter(None, rest.split(",")):
        name, _, value = pair.partition("=")
        if name not in OF_A_RULE:
            raise ValueError(f"--rule {text}: {unknown('setting', name, OF_A_RULE)}")
        try:
            own[name] = float(value)
        except ValueError as error:
            raise ValueError(
                f"--rule {text}: {name} is '{value}', which is not a number."
            ) from error
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
    from psac.app.reporting.snapshot import read
    from psac.app.reporting.statistics import comparisons, groups
    from psac.app.training.run import write_json

    runs = [read(job.folder) for job in jobs]
    settings_groups = groups(runs)
    tests = comparisons(settings_groups)
    console.print(_results(settings_groups, title_of(runs, "Results at the same budget")))
    console.print(_tests(tests) if tests else "Repeat each rule (--repeats) for a test.")
    total = total_cost(runs)
    console.print(total.sentence)
    facts = _facts(settings_groups, tests) | mark_of(runs)
    write_json(place / "compare.json", {**facts, "price": total.to_json()})
    page = report([job.folder for job in jobs], output=place / "report.html")
    say_where(place / "compare.json", page)


def _results(groups: list[Group], title: str | None) -> Table:
    table = Table("rule", title=title)
    for column in ("runs", "accuracy", "epsilon"):
        table.add_column(column, justify="right")
    for group in sorted(groups, key=lambda group: -(group.mean or 0)):
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


def _facts(groups: list[Group], tests: list[Comparison]) -> dict[str, Any]:
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
            for group in groups
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
