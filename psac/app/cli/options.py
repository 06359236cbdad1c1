"""Options that several commands share: one parameter of a command stands for a group of options.

    def plan(steps: Steps = None, epochs: Epochs = None) -> Plan: ...

    @with_options(plan=plan)
    def calibrate(epsilon: float, *, plan: Plan) -> None: ...

gives `calibrate` the options --steps and --epochs, and passes it what `plan` returns for them.
Errors in `plan` are usage errors.  An option that the command has itself takes precedence.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from psac.app.cli import completion
from psac.app.cli.error_messages import typed

Command = Callable[..., None]
# For the commands that train several times.
RecipeName = Annotated[
    str,
    typer.Argument(
        help="Built-in recipe (psac recipes) or TOML file. Options override its settings.",
        autocompletion=completion.completer(completion.recipes),
        show_default=False,
    ),
]
Processes = Annotated[int, typer.Option(help="Number of runs at a time.", min=1)]


def with_options(**groups: Callable[..., Any]) -> Callable[[Command], Command]:
    """A decorator: each keyword is a parameter of the command, with the function that builds it."""

    def decorate(command: Command) -> Command:
        own = [each for each in _parameters(command) if each.name not in groups]
        names = {each.name for each in own}
        members = {
            name: [each for each in _parameters(build) if each.name not in names]
            for name, build in groups.items()
        }

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            with typed():
                arguments = {
                    name: build(**{each.name: values.pop(each.name) for each in members[name]})
                    for name, build in groups.items()
                }
            command(**values, **arguments)

        parameters = own + [each for group in members.values() for each in group]
        by_keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        wrapper.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())
