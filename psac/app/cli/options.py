"""Options that several commands share: a parameter of a command may be made from options.

    def plan(steps: Steps = None, epochs: Epochs = None) -> Plan: ...

    @made_from_options(plan=plan)
    def calibrate(epsilon: float, *, plan: Plan) -> None: ...

gives `calibrate` the options --steps and --epochs, and the value that they make.  What a maker
refuses is a usage error.  An option that the command has itself is its own, and not the maker's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from psac.app.cli import names
from psac.app.cli.mistakes import typed

Command = Callable[..., None]
# Of the commands that train many times.
RecipeName = Annotated[
    str,
    typer.Argument(
        help="A shipped recipe (psac recipes) or a TOML file; options replace its settings.",
        autocompletion=names.completer(names.recipes),
        show_default=False,
    ),
]
Processes = Annotated[int, typer.Option(help="Runs at a time.", min=1)]


def made_from_options(**makers: Callable[..., Any]) -> Callable[[Command], Command]:
    """A decorator; the keywords are parameters of the command, the values what makes them."""

    def decorate(command: Command) -> Command:
        own = [each for each in _parameters(command) if each.name not in makers]
        taken = {each.name for each in own}
        theirs = {
            name: [each for each in _parameters(make) if each.name not in taken]
            for name, make in makers.items()
        }

        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            with typed():
                made = {
                    name: make(**{each.name: given.pop(each.name) for each in theirs[name]})
                    for name, make in makers.items()
                }
            command(**given, **made)

        everything = own + [each for parameters in theirs.values() for each in parameters]
        by_keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in everything]
        with_options.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
        return with_options

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())
