"""Every setting of a recipe as an option, from one table.

Type, flag and default follow from the field of `Recipe`; a row adds its panel in --help, its
meaning and the names that the shell completes.  A test makes sure that every field has a row.

    @with_options(settings=settings)
    def command(recipe: str, *, settings: dict[str, Any]) -> None: ...

gives the command an option for each setting, and a dict of those that were typed.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from psac.app.cli import completion
from psac.app.toml import tomllib
from psac.app.training.recipe import FLAGS, RANGES, TABLES, WHOLE, Recipe

DATA, MODEL, PRIVACY, OPTIMIZATION, MACHINE = "Data", "Model", "Privacy", "Optimization", "Machine"
PAIR = "NAME=VALUE"


class Option(NamedTuple):
    panel: str
    about: str
    names: completion.Names | None = None
    default: str | None = None  # in words, if it is not a constant


SETTINGS: dict[str, Option] = {
    "data": Option(
        DATA,
        "Name of a data set (psac data list), or a path to your own data.",
        completion.data_sets,
    ),
    "data_root": Option(DATA, "Folder with the files of a named data set."),
    "data_settings": Option(
        DATA, "Settings for reading the data, such as size=64. Can be repeated."
    ),
    "validation_fraction": Option(
        DATA,
        "Fraction of the training records to hold out for evaluation, instead of a test split.",
    ),
    "test_is_public": Option(
        DATA, "State that the test records are public, so that results on them may be published."
    ),
    "most_frequent_share": Option(
        DATA, "Publicly known share of the most frequent class, to compare the accuracy with."
    ),
    "model": Option(
        MODEL, "Network, or FILE.py:FUNCTION for your own.", completion.choices_of("model")
    ),
    "model_settings": Option(
        MODEL, "Settings for the network, such as hidden=[64,32]. Can be repeated."
    ),
    "rule": Option(PRIVACY, "Clipping rule.", completion.choices_of("rule")),
    "r": Option(PRIVACY, "Regularizer r of the clipping rule.", default="the rule's own"),
    "bound": Option(
        PRIVACY, "Bound C on the contribution of one sample.", default="the rule's own"
    ),
    "scale": Option(PRIVACY, "Gradient norm that the rule treats as 1.", default="the rule's own"),
    "epsilon": Option(PRIVACY, "Privacy budget. The noise is calibrated to it."),
    "noise_multiplier": Option(PRIVACY, "Noise multiplier, instead of a privacy budget."),
    "delta": Option(PRIVACY, "Probability that the guarantee fails.", default="1 / (10 records)"),
    "sampling": Option(PRIVACY, "Sampling scheme.", completion.samplings),
    "batch_size": Option(OPTIMIZATION, "Expected batch size."),
    "epochs": Option(OPTIMIZATION, "Number of epochs: how often each record is used on average."),
    "copies": Option(
        OPTIMIZATION, "Number of shifted copies per image. Training takes that many times longer."
    ),
    "shift": Option(OPTIMIZATION, "Largest shift of such a copy, in pixels."),
    "optimizer": Option(OPTIMIZATION, "Torch optimizer.", completion.choices_of("optimizer")),
    "learning_rate": Option(OPTIMIZATION, "Initial learning rate."),
    "momentum": Option(OPTIMIZATION, "Momentum of sgd."),
    "weight_decay": Option(OPTIMIZATION, "Weight decay."),
    "schedule": Option(OPTIMIZATION, "Learning rate schedule.", completion.choices_of("schedule")),
    "precision": Option(
        MACHINE,
        "Precision of losses and their gradients.",
        completion.choices_of("precision"),
    ),
    "seed": Option(
        MACHINE, "Random seed. Makes the run repeatable and NOT private.", default="none: secure"
    ),
    "device": Option(
        MACHINE, "Device: cpu, cuda, cuda:1, mps, or auto, which takes a GPU if there is one."
    ),
    "physical_batch_size": Option(
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
        autocompletion=completion.completer(row.names) if row.names else None,
        metavar=PAIR if name in TABLES else None,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_type(name), option],
    )


def _help(name: str, row: Option) -> str:
    """What it means and which names it takes, except those of data sets, which are many."""
    named = row.names is not None and name != "data"
    return f"{row.about} {completion.one_of(row.names)}" if named else row.about  # type: ignore[arg-type]


def _type(name: str) -> Any:
    if name in TABLES:
        return list[str] | None
    if name in WHOLE:
        return int | None
    if name in FLAGS:
        return bool | None
    return float | None if name in RANGES else str | None


def settings(**options: Any) -> dict[str, Any]:
    typed = {name: value for name, value in options.items() if value not in (None, [])}
    for name in TABLES:
        if name in typed:
            typed[name] = dict(_pair(name, text) for text in typed[name])
    return typed


settings.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_option(field) for field in dataclasses.fields(Recipe)]
)


def loaded(recipe: str | os.PathLike[str], overrides: Mapping[str, Any]) -> Recipe:
    """The recipe with these overrides; errors name the option that was typed."""
    from psac.app.training import load_recipe

    try:
        return load_recipe(recipe, **overrides)
    except (TypeError, ValueError) as error:
        raise type(error)(with_option_names(str(error), overrides)) from error


def with_option_names(message: str, typed: Iterable[str]) -> str:
    """The message, with the option in place of the setting that was typed.

    >>> with_option_names("batch_size is 0: it must be 1 or above.", ["batch_size"])
    '--batch-size is 0: it must be 1 or above.'
    """
    first, _, rest = message.partition(" ")
    return f"--{first.replace('_', '-')} {rest}" if first in typed else message


def _pair(option: str, text: str) -> tuple[str, Any]:
    """`size=64` as a name and a value: TOML, or else plain text.

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
