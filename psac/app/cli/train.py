"""`psac train`: a private model from a recipe or from options, and its report page.

Ctrl-C, or SIGTERM, ends it after the step at hand, saves, and says how to go on.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

import psac
from psac.app.cli import names
from psac.app.cli.console import as_typed, console, errors
from psac.app.cli.mistakes import FULL, code_of, sentence, typed
from psac.app.cli.options import made_from_options
from psac.app.cli.progress import price
from psac.app.cli.settings import by_options, loaded, settings
from psac.app.cli.view import view_of
from psac.app.reporting import numerals
from psac.app.reporting.head import compared
from psac.app.training.observer import Observer, Silent, Together

if TYPE_CHECKING:
    from psac.app.training import Recipe, Run


@made_from_options(settings=settings)
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A shipped recipe (psac recipes) or a TOML file, whose settings options replace. "
            "Without one, all is said by options.",
            show_default=False,
            autocompletion=names.completer(names.recipes),
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of the run. Default: runs/NAME, as the recipe is called."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in that folder.")
    ] = False,
    label: Annotated[
        str | None,
        typer.Option(help="The column of the classes, in a table of your own.", show_default=False),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            help="The schema of a table of your own (psac data describe).", show_default=False
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the last line.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines on stdout, and nothing else there.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also log to RUN/tensorboard.")
    ] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a private model, and write its report page."""
    from psac.app.training import Interrupted
    from psac.app.training import train as trained

    for name, given in (("label", label), ("schema", schema)):
        if given is not None:
            settings["data_settings"] = {**settings.get("data_settings", {}), name: given}
    folder, title = _folder(recipe, run, settings)
    with typed():
        if quiet and as_json:
            raise ValueError("--quiet and --json exclude each other: --json is quiet already.")
        chosen = _recipe(recipe, folder, resume, settings)
    if not (quiet or as_json):  # the view says that a seed is given
        warnings.simplefilter("ignore", psac.InsecureNoiseWarning)
    try:
        shown = view_of(console, title, quiet=quiet, as_json=as_json)
        with _logged(folder, tensorboard) as log, shown as view:
            done = trained(chosen, folder, resume=resume, observer=Together(log, view))
    except KeyboardInterrupt as stop:
        _say_how_to_go_on(folder, as_json, tensorboard, saved=isinstance(stop, Interrupted))
        raise typer.Exit(code_of(stop)) from None
    except OSError as error:
        raise _with_advice(error, folder) from error
    _say_what_came_out(done, quiet, as_json)


def _folder(recipe: str | None, run: Path | None, settings: dict[str, Any]) -> tuple[Path, str]:
    """Where the run goes, and what it is called."""
    parts = [Path(settings[name]).stem for name in ("data", "model") if name in settings]
    title = Path(recipe).stem if recipe else "-".join(parts) or (run.name if run else "")
    if not title:
        raise typer.BadParameter(
            "give a recipe (psac recipes), or --data and --model, or --resume with --run FOLDER."
        )
    return run or Path("runs") / title, title


def _recipe(name: str | None, folder: Path, resume: bool, settings: dict[str, Any]) -> Recipe:
    from psac.app.training import Run
    from psac.app.training.splits import refuse_unknown_data

    if name is not None:
        chosen = loaded(name, settings)
    elif resume:
        Run(folder).refuse_empty()
        chosen = loaded(Run(folder).recipe_path, settings)
    else:
        chosen = _by_options_alone(settings)
    refuse_unknown_data(chosen)
    return chosen


def _by_options_alone(settings: dict[str, Any]) -> Recipe:
    from psac.app.training import Recipe
    from psac.app.training.recipe import NEEDED

    missing = [f"--{name.replace('_', '-')}" for name in NEEDED if name not in settings]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} missing: without a recipe, each of them is needed. "
            "`psac recipes` lists recipes."
        )
    try:
        return Recipe.from_settings(settings)
    except (TypeError, ValueError) as error:
        raise type(error)(by_options(str(error), settings)) from error


def _logged(folder: Path, tensorboard: bool) -> contextlib.AbstractContextManager[Observer]:
    from psac.app.training.tensorboard import TensorBoard

    return TensorBoard(folder / "tensorboard") if tensorboard else contextlib.nullcontext(Silent())


def _with_advice(error: OSError, folder: Path) -> OSError:
    """A disk that is full: how to go on.  What could not be read, or made, speaks for itself."""
    if error.errno not in FULL:
        return error
    where = "" if error.filename else f" (while writing to {folder})"
    again = shlex.join(["psac", "train", "--run", str(folder), "--resume"])
    saved = (folder / "checkpoint.safetensors").exists()
    advice = f" What was saved is whole. When there is room, go on: {again}" if saved else ""
    return OSError(f"{sentence(error)}{where}.{advice}")


def _say_how_to_go_on(folder: Path, as_json: bool, tensorboard: bool, *, saved: bool) -> None:
    from psac.app.training import Run

    run = Run(folder)
    if not run.steps_on_record():
        errors.print("[yellow]Stopped before the first step: nothing was trained.[/]")
        if not run.checkpoint_path.exists():
            return
    elif not saved:  # a second Ctrl-C
        errors.print("[yellow]What ran since the last save is lost, and counts as spent.[/]")
    options = ["--resume", *["--tensorboard"] * tensorboard]
    again = shlex.join(["psac", "train", "--run", str(folder), *options])
    step = run.ledger().steps
    if as_json:
        _print_json({"kind": "stopped", "step": step, "folder": str(folder), "go_on": again})
    state = f"Stopped, and saved as of step {step:,}." if run.steps_on_record() else ""
    errors.print(f"[yellow]{state}[/] To go on:" if state else "To go on:")
    errors.print(f"  [bold]{escape(again)}[/]", soft_wrap=True)


def _say_what_came_out(run: Run, quiet: bool, as_json: bool) -> None:
    from psac.app.reporting import report

    page, summary = report(run.folder), run.summary()
    if as_json:
        keys = (
            *("accuracy", "constant_accuracy", "split", "public", "private", "epsilon", "delta"),
            *("secure", "isolation", "warnings", "seconds"),
        )
        facts = {key: summary[key] for key in keys if key in summary}
        _print_json(
            {"kind": "result", **facts, "folder": str(run.folder), "report": as_typed(page)}
        )
        return
    line = result_line(summary)
    if quiet:
        console.print(f"{line}, report {escape(as_typed(page))}", soft_wrap=True)
        return
    console.print(f"[bold]{line}[/]", soft_wrap=True)
    console.print(f"The page of this run: [bold]{escape(as_typed(page))}[/]", soft_wrap=True)


def result_line(summary: dict[str, Any]) -> str:
    """Accuracy, beside that of an answer that does not look at the record, and its price."""
    public = summary.get("public") is True
    records = f"{'public' if public else 'private'} {summary['split']} records"
    marked = "" if public else " (not private: do not publish)"
    kind = "" if summary["secure"] else ", NOT private (a seed was given)"
    count = len(summary.get("warnings", ()))
    warned = f", with {numerals.plural(count, 'privacy warning')}: see the page" if count else ""
    return (
        f"accuracy {summary['accuracy']:.2%} on {records}{marked}, "
        f"{compared(summary['accuracy'], summary)}, epsilon {price(summary['epsilon'])} at delta "
        f"{numerals.delta(summary['delta'])}{kind}{warned}"
    )


def _print_json(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)
