"""The names that the shell completes: recipes, data sets, models, rules, sampling schemes.

Names come from the registries, so new ones are completed without further work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Names = Callable[[], Iterable[str]]


def completer(names: Names) -> Callable[[str], list[str]]:
    """For typer's `autocompletion`."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def one_of(names: Names) -> str:
    """For --help."""
    return f"One of {', '.join(sorted(names()))}."


def recipes() -> list[str]:
    from psac.app.training import shipped

    return shipped()


def data_sets() -> list[str]:
    from psac.app import data

    return data.names()


def fetched() -> list[str]:
    from psac.app import data
    from psac.app.text.pretrained import PRETRAINED

    return [*data.names(), *PRETRAINED]


def samplings() -> list[str]:
    from psac import sampling

    return list(sampling.SCHEMES)


def choices_of(setting: str) -> Names:
    """The names that a setting of a recipe accepts."""

    def names() -> Iterable[str]:
        from psac.app.training.recipe import CHOICES

        return CHOICES[setting]

    return names
