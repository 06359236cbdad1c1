"""`psac train`: trains a private model from a recipe or from options, and writes its report.

Ctrl-C or SIGTERM stops it after the current step, saves, and says how to continue.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

import psac
from psac.app.cli import completion
from psac.app.cli.console import as_typed, console, errors
from psac.app.cli.error_messages import DISK_FULL, code_of, sentence, typed
from psac.app.cli.options import with_options
from psac.app.cli.progress import price
from psac.app.cli.recipe_options import loaded, settings, with_option_names
from psac.app.cli.views import view_of
from psac.app.reporting import numerals
from psac.app.reporting.head import compared
from psac.app.training.observer import Observer, Silent, Together

if TYPE_CHECKING:
    from psac.app.training import Recipe, Run


@with_options(settings=settings)
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Built-in recipe (psac recipes) or TOML file. Options override its settings. "
            "Without a recipe, give all settings as options.",
            show_default=False,
            autocompletion=completion.completer(completion.recipes),
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of the run. Default: runs/ and the name of the recipe."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in that folder.")
    ] = False,
    label: Annotated[
        str | None,
        typer.Option(
            help="Column of the classes, if the data are your own table.", show_default=False
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="Column of text in your own table, for a language model.", show_default=False
        ),
    ] = None,
    lora: Annotated[
        int | None,
        typer.Option(
            help="Rank of LoRA: train adapters and the head of a language model, not all weights.",
            min=1,
            show_default=False,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(help="Schema of your own table (psac data describe).", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines and nothing else on stdout.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also log to RUN/tensorboard.")
    ] = False,
    workers: Annotated[
        int,
        typer.Option(min=1, help="Processes on this machine that train the run together."),
    ] = 1,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a private model and write its report."""
    from psac.app.training import workers as several

    for name, value in (("label", label), ("text", text), ("schema", schema)):
        if value is not None:
            settings["data_settings"] = {**settings.get("data_settings", {}), name: value}
    if lora is not None:
        settings["model_settings"] = {**settings.get("model_settings", {}), "lora": lora}
    folder, title = _folder(recipe, run, settings)
    with typed():
        if quiet and as_json:
            raise ValueError(
                "--quiet and --json exclude each other; --json prints nothing but JSON."
            )
        full_recipe = _recipe(recipe, folder, resume, settings)
    if workers > 1 and not several.is_started():
        raise typer.Exit(several.start(workers, sys.argv[1:]))
    with _as_worker():
        _train(full_recipe, folder, title, resume, quiet, as_json, tensorboard)


@contextlib.contextmanager
def _as_worker() -> Iterator[None]:
    """Of several processes, the first one speaks."""
    from psac.app.training import workers as several

    console.quiet = errors.quiet = not several.is_first()
    with several.joined():
        yield


def _train(
    full_recipe: Recipe,
    folder: Path,
    title: str,
    resume: bool,
    quiet: bool,
    as_json: bool,
    tensorboard: bool,
) -> None:
    from psac.app.training import Interrupted
    from psac.app.training import train as trained
    from psac.app.training.workers import is_first

    as_json, tensorboard = as_json and is_first(), tensorboard and is_first()
    if not (quiet or as_json):  # the view says that the run is seeded
        warnings.simplefilter("ignore", psac.InsecureNoiseWarning)
    try:
        shown = view_of(console, title, quiet=quiet, as_json=as_json)
        with _logged(folder, tensorboard) as log, shown as view:
            result = trained(full_recipe, folder, resume=resume, observer=Together(log, view))
    except KeyboardInterrupt as stop:
        options = ["--tensorboard"] * tensorboard + _option_of_workers()
        if is_first():
            _show_how_to_continue(folder, as_json, options, saved=isinstance(stop, Interrupted))
        raise typer.Exit(code_of(stop)) from None
    except OSError as error:
        raise _with_advice(error, folder) from error
    if is_first():
        _show_result(result, quiet, as_json)


def _folder(recipe: str | None, run: Path | None, settings: dict[str, Any]) -> tuple[Path, str]:
    """The folder and the name of the run."""
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
        full_recipe = loaded(name, settings)
    elif resume:
        Run(folder).refuse_empty()
        full_recipe = loaded(Run(folder).recipe_path, settings)
    else:
        full_recipe = _by_options_alone(settings)
    refuse_unknown_data(full_recipe)
    return full_recipe


def _by_options_alone(settings: dict[str, Any]) -> Recipe:
    from psac.app.training import Recipe
    from psac.app.training.recipe import NEEDED
    from psac.app.training.shipped import recipe_for

    missing = [f"--{name.replace('_', '-')}" for name in NEEDED if name not in settings]
    if missing and (name := recipe_for(settings)):
        errors.print(f"Settings that are not given are those of the recipe [bold]{name}[/].")
        return loaded(name, settings)
    if missing:
        raise ValueError(
            f"{', '.join(missing)} missing. Without a recipe, these options are needed. "
            "`psac recipes` lists the built-in recipes."
        )
    try:
        return Recipe.from_settings(settings)
    except (TypeError, ValueError) as error:
        raise type(error)(with_option_names(str(error), settings)) from error


def _logged(folder: Path, tensorboard: bool) -> contextlib.AbstractContextManager[Observer]:
    from psac.app.training.tensorboard import TensorBoard

    return TensorBoard(folder / "tensorboard") if tensorboard else contextlib.nullcontext(Silent())


def _with_advice(error: OSError, folder: Path) -> OSError:
    """The error; if the disk is full, also how to continue."""
    if error.errno not in DISK_FULL:
        return error
    where = "" if error.filename else f" (while writing to {folder})"
    again = shlex.join(["psac", "train", "--run", str(folder), "--resume"])
    saved = (folder / "checkpoint.safetensors").exists()
    advice = (
        f" The saved files are complete. After freeing space, continue with: {again}"
        if saved
        else ""
    )
    return OSError(f"{sentence(error)}{where}.{advice}")


def _option_of_workers() -> list[str]:
    from psac.app.training.workers import is_started

    return ["--workers", os.environ["WORLD_SIZE"]] if is_started() else []


def _show_how_to_continue(folder: Path, as_json: bool, options: list[str], *, saved: bool) -> None:
    from psac.app.training import Run

    run = Run(folder)
    if not run.steps_on_record():
        errors.print("[yellow]Stopped before the first step. Nothing was trained.[/]")
        if not run.checkpoint_path.exists():
            return
    elif not saved:  # a second Ctrl-C
        errors.print("[yellow]Steps since the last save are lost, but count as spent.[/]")
    again = shlex.join(["psac", "train", "--run", str(folder), "--resume", *options])
    step = run.ledger().steps
    if as_json:
        _print_json({"kind": "stopped", "step": step, "folder": str(folder), "go_on": again})
    state = f"Stopped and saved at step {step:,}." if run.steps_on_record() else ""
    errors.print(f"[yellow]{state}[/] To continue:" if state else "To continue:")
    errors.print(f"  [bold]{escape(again)}[/]", soft_wrap=True)


def _show_result(run: Run, quiet: bool, as_json: bool) -> None:
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
    console.print(f"Report: [bold]{escape(as_typed(page))}[/]", soft_wrap=True)


def result_line(summary: dict[str, Any]) -> str:
    """Accuracy, compared with a constant answer, and epsilon."""
    public = summary.get("public") is True
    records = f"{'public' if public else 'private'} {summary['split']} records"
    marked = "" if public else " (not private: do not publish)"
    kind = "" if summary["secure"] else ", NOT private (seeded)"
    count = len(summary.get("warnings", ()))
    warned = f", {numerals.plural(count, 'privacy warning')} (see the report)" if count else ""
    return (
        f"accuracy {summary['accuracy']:.2%} on {records}{marked}, "
        f"{compared(summary['accuracy'], summary)}, epsilon {price(summary['epsilon'])} at delta "
        f"{numerals.delta(summary['delta'])}{kind}{warned}"
    )


def _print_json(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)
