"""Every setting of a recipe as an option, from one table.

Type, flag and default follow from the field of `Recipe`; a row adds where it stands in --help, what
it means and which names the shell completes.  A field without a row, or a row without a field, is
an error at once, so that recipes and options cannot drift apart.

    @made_from_options(settings=settings)
    def command(recipe: str, *, settings: dict[str, Any]) -> None: ...

gives the command an option for each, and what was typed as a dict.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from psac.app.cli import names
from psac.app.training.recipe import FLAGS, RANGES, TABLES, WHOLE, Recipe
from psac.app.training.toml import tomllib

DATA, MODEL, PRIVACY, OPTIMIZATION, MACHINE = "Data", "Model", "Privacy", "Optimization", "Machine"
PAIR = "NAME=VALUE"


class Row(NamedTuple):
    panel: str
    about: str
    names: names.Names | None = None
    default: str | None = None  # in words, where it is no constant


SETTINGS: dict[str, Row] = {
    "data": Row(
        DATA, "Name of a data set (psac data list), or a path to your own data.", names.data_sets
    ),
    "data_root": Row(DATA, "Folder with the files of a named data set."),
    "data_settings": Row(DATA, "Settings for reading the data, such as size=64. Can be repeated."),
    "validation_fraction": Row(
        DATA, "Fraction of the training records to hold out and evaluate on, not the test split."
    ),
    "test_is_public": Row(
        DATA, "Says that the test records are public, so that results on them may be shown."
    ),
    "most_frequent_share": Row(
        DATA, "How often the most frequent class occurs, if that is known publicly: to compare."
    ),
    "model": Row(MODEL, "Network, or FILE.py:FUNCTION for your own.", names.choices_of("model")),
    "model_settings": Row(
        MODEL, "Settings for the network, such as hidden=[64,32]. Can be repeated."
    ),
    "rule": Row(PRIVACY, "Clipping rule.", names.choices_of("rule")),
    "r": Row(PRIVACY, "Regularizer r of the clipping rule.", default="the rule's own"),
    "bound": Row(PRIVACY, "Bound C on the contribution of one sample.", default="the rule's own"),
    "scale": Row(PRIVACY, "Gradient norm that the rule treats as 1.", default="the rule's own"),
    "epsilon": Row(PRIVACY, "Privacy budget. The noise is calibrated to it."),
    "noise_multiplier": Row(PRIVACY, "Noise multiplier, instead of a privacy budget."),
    "delta": Row(PRIVACY, "Probability that the guarantee fails.", default="1 / (10 records)"),
    "sampling": Row(PRIVACY, "Sampling scheme.", names.samplings),
    "batch_size": Row(OPTIMIZATION, "Expected batch size."),
    "epochs": Row(OPTIMIZATION, "Number of epochs: how often each record is seen on average."),
    "copies": Row(
        OPTIMIZATION, "Number of shifted copies per image. Training takes that many times longer."
    ),
    "shift": Row(OPTIMIZATION, "Largest shift of such a copy, in pixels."),
    "optimizer": Row(OPTIMIZATION, "Torch optimizer.", names.choices_of("optimizer")),
    "learning_rate": Row(OPTIMIZATION, "Initial learning rate."),
    "momentum": Row(OPTIMIZATION, "Momentum of sgd."),
    "weight_decay": Row(OPTIMIZATION, "Weight decay."),
    "schedule": Row(OPTIMIZATION, "Learning rate schedule.", names.choices_of("schedule")),
    "seed": Row(
        MACHINE, "Random seed. Makes the run repeatable and NOT private.", default="none: secure"
    ),
    "device": Row(
        MACHINE, "Device: cpu, cuda, cuda:1, mps, or auto, which takes a GPU if there is one."
    ),
    "physical_batch_size": Row(
        MACHINE, "Largest number of samples at a time. Limits memory and never changes the result."
    ),
}


def _option(field: dataclasses.Field) -> inspect.Parameter:
    name, row = field.name, SETTINGS[field.name]
    default = row.default or (
        None if field.default in (dataclasses.MISSING, None, False) else field.default
    )
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=_help(name, row),
        rich_help_panel=row.panel,
        show_default=False if default is None else str(default),
        autocompletion=names.completer(row.names) if row.names else None,
        metavar=PAIR if name in TABLES else None,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_type(name), option],
    )


def _help(name: str, row: Row) -> str:
    """What it means, and which names it takes; those of data are many, and a command lists them."""
    named = row.names is not None and name != "data"
    return f"{row.about} {names.one_of(row.names)}" if named else row.about  # type: ignore[arg-type]


def _type(name: str) -> Any:
    if name in TABLES:
        return list[str] | None
    if name in WHOLE:
        return int | None
    if name in FLAGS:
        return bool | None
    return float | None if name in RANGES else str | None


def settings(**options: Any) -> dict[str, Any]:
    """Those that were typed; tables as tables."""
    given = {name: value for name, value in options.items() if value not in (None, [])}
    for name in TABLES:
        if name in given:
            given[name] = dict(_pair(name, text) for text in given[name])
    return given


settings.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_option(field) for field in dataclasses.fields(Recipe)]
)


def loaded(recipe: str | os.PathLike[str], given: Mapping[str, Any]) -> Recipe:
    """The recipe with what was typed in place of its settings; errors name the option."""
    from psac.app.training import load_recipe

    try:
        return load_recipe(recipe, **given)
    except (TypeError, ValueError) as error:
        raise type(error)(by_options(str(error), given)) from error


def by_options(message: str, given: Iterable[str]) -> str:
    """A message about a setting that was typed as an option names it so.

    >>> by_options("batch_size is 0: it must be 1 or above.", ["batch_size"])
    '--batch-size is 0: it must be 1 or above.'
    """
    first, _, rest = message.partition(" ")
    return f"--{first.replace('_', '-')} {rest}" if first in given else message


def _pair(option: str, text: str) -> tuple[str, Any]:
    """`size=64` as a name and a value, which is one of TOML, or else a text.

    >>> _pair("data_settings", "label=income"), _pair("model_settings", "hidden=[64, 32]")
    (('label', 'income'), ('hidden', [64, 32]))
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        flag = f"--{option.replace('_', '-')}"
        raise ValueError(f"{flag} is '{text}': give {PAIR}, such as size=64.")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
