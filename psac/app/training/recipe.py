"""All settings of a run in one value, and as a TOML file.

    recipe = Recipe.from_toml("mine.toml", epsilon=3.0)
    recipe.to_toml()

Guarantees: whatever a run does follows from its recipe, its data and, if `seed` is None, fresh
randomness; two equal recipes ask for the same run; `from_toml(to_toml())` is equal.  A setting that
is unknown, missing, out of range or would be ignored is refused with what is allowed, before any
data is read.  Nothing in a recipe depends on private data, unless it was tuned on it, which costs
privacy (`psac.tuned_epsilon`).

>>> settings = {"batch_size": 64, "epochs": 5, "learning_rate": 1, "epsilon": 3}
>>> Recipe(data="digits", model="linear", **settings).clipping()
PSAC(r=0.1, bound=1.0, scale=1.0)
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from psac import sampling
from psac.app import models
from psac.app.data.schema import inlined
from psac.app.models.registry import check_settings
from psac.app.training import toml
from psac.app.training.optimization import OPTIMIZERS, SCHEDULES
from psac.app.training.overriding import overridden
from psac.app.training.own_model import FORM, is_own
from psac.clipping import rules as clipping
from psac.clipping.rules import AdaptivePSAC, ClippingRule

ADAPTIVE = "adaptive_psac"
CHOICES: dict[str, Iterable[str]] = {
    "model": models.names(),
    "rule": [ADAPTIVE, *clipping.RULES],
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
TEXTS = ("data", "data_root", "model", "rule", "sampling", "optimizer", "schedule", "device")
TABLES = ("data_settings", "model_settings")
FLAGS = ("test_is_public",)
WHOLE = {  # with the least value
    **{"batch_size": 1, "physical_batch_size": 1, "seed": 0},
    **{"copies": 1, "shift": 0},
}
RANGES: dict[str, str] = {
    "validation_fraction": "from 0 to below 1",
    "most_frequent_share": "above 0 and below 1",
    "r": "above 0",
    "bound": "above 0",
    "scale": "above 0",
    "epsilon": "above 0",
    "noise_multiplier": "0 or above",
    "delta": "above 0 and below 1",
    "epochs": "above 0",
    "learning_rate": "above 0",
    "momentum": "from 0 to below 1",
    "weight_decay": "0 or above",
}
ALLOWED: dict[str, Callable[[float], bool]] = {
    "above 0": lambda value: value > 0,
    "0 or above": lambda value: value >= 0,
    "above 0 and below 1": lambda value: 0 < value < 1,
    "from 0 to below 1": lambda value: 0 <= value < 1,
}
OTHER_WORDS = {  # of torch, Opacus and papers
    "lr": "learning_rate",
    "max_grad_norm": "bound",
    "clip": "bound",
    "sigma": "noise_multiplier",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "steps": "epochs",
    "max_physical_batch_size": "physical_batch_size",
}
NEEDED = ("data", "model", "batch_size", "epochs", "learning_rate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run.  None stands for a default that is stated here.

    `data` is a name of `psac.data` or a path of the user's own (own_data.py), `data_root` where the
    files of a named one are, `data_settings` what its reader takes, such as a label's column; a
    `schema` in it is a file, whose content takes its place.
    `model` is a name of `psac.models` or FILE.py:FUNCTION of the user's own (own_model.py).
    `validation_fraction` 0 evaluates on the test split; above, on a part that is held out of the
    training data, which stays private.  Test records of the user's own are private, too, unless
    `test_is_public` says otherwise; those of a named data set as it was published are public.
    `most_frequent_share` is how often the most frequent class occurs, as it was known before:
    accuracy is held against it where nothing public can be counted.
    `r`, `bound` and `scale` are those of the rule (None: its own defaults; for adaptive_psac
    `scale` is the initial one).  The noise is calibrated to `epsilon`, or given as
    `noise_multiplier`; `delta` None is 1 / (10 * records).
    Pictures can be seen in several `copies`, the first as it is, the others moved by up to `shift`
    pixels; a sample's gradient is the mean over them, an answer that over five places of the
    picture (`psac.models.ShiftedCopies`).
    `seed` None is secure; with a seed the run can be repeated and is NOT private.
    """

    data: str
    data_root: str | None = None
    data_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    validation_fraction: float = 0.0
    test_is_public: bool = False
    most_frequent_share: float | None = None
    model: str
    model_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    rule: str = "psac"
    r: float | None = None
    bound: float | None = None
    scale: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    sampling: str = "poisson"
    batch_size: int
    epochs: float
    copies: int = 1
    shift: int = 0
    physical_batch_size: int = 1024
    optimizer: str = "sgd"
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    seed: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in TEXTS:
            self._settle(name, _checked_text(name, getattr(self, name), self._optional(name)))
        for name in WHOLE:
            self._settle(name, _checked_whole(name, getattr(self, name), self._optional(name)))
        for name in RANGES:
            self._settle(name, _checked_number(name, getattr(self, name), self._optional(name)))
        for name in FLAGS:
            _check_flag(name, getattr(self, name))
        given: Any = self.data_settings
        if isinstance(given, Mapping):  # a schema of today, not of when the run is resumed
            self._settle("data_settings", inlined(given))
        for name in TABLES:
            self._settle(name, _checked_table(name, getattr(self, name)))
        self._check_together()

    def _settle(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def _optional(cls, name: str) -> bool:
        return cls.__dataclass_fields__[name].default is None

    def _check_together(self) -> None:
        own = is_own(self.model)
        for name, known in CHOICES.items():
            if getattr(self, name) not in known and not (own and name == "model"):
                hint = f" Your own: {FORM}." if name == "model" else ""
                raise ValueError(_unknown(name, getattr(self, name), known) + hint)
        if not own:  # its settings are those of its function
            check_settings(self.model, self.model_settings)
        sampling.get(self.sampling)
        self.clipping()
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                "give epsilon (the noise is calibrated to it) or noise_multiplier, one of them: "
                f"epsilon={self.epsilon}, noise_multiplier={self.noise_multiplier}."
            )
        if (self.copies > 1) != (self.shift > 0):
            raise ValueError(
                f"copies is {self.copies} and shift {self.shift}: give both, such as copies 2 and "
                "shift 1, or neither (copies 1 and shift 0). Equal copies would teach nothing, and "
                "the first one is not moved."
            )
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f"momentum is {self.momentum}, but optimizer '{self.optimizer}' has one of its own "
                "and would ignore it. Leave it out, or take optimizer 'sgd'."
            )

    def clipping(self) -> ClippingRule | AdaptivePSAC:
        """The rule with its settings."""
        given = {"r": self.r, "bound": self.bound, "scale": self.scale}
        settings = {name: value for name, value in given.items() if value is not None}
        if self.rule != ADAPTIVE:
            return clipping.get(self.rule, **settings)
        if "scale" in settings:
            settings["initial_scale"] = settings.pop("scale")
        return AdaptivePSAC(**settings)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], **overrides: Any) -> Recipe:
        """The recipe in the file, with some settings replaced (see overriding.py)."""
        written = toml.read(Path(path))
        settings = overridden(written, overrides)
        try:
            return cls.from_settings(settings)
        except (TypeError, ValueError) as error:
            if cls._is_to_blame(written, overrides, str(error)):
                raise type(error)(f"{path}: {error}") from error
            raise

    @classmethod
    def _is_to_blame(cls, written: Mapping[str, Any], given: Mapping[str, Any], error: str) -> bool:
        """Whether a file is wrong by itself, and not what was given in place of its settings."""
        if error.split()[0] in given:
            return False
        try:
            cls.from_settings(written)
        except (TypeError, ValueError):
            return True
        return not given

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], *, place: str = "") -> Recipe:
        """The recipe with these settings; errors begin with `place`."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                raise ValueError(place + _unknown("setting", name, known))
        missing = [name for name in NEEDED if name not in settings]
        if missing:
            raise ValueError(f"{place}{', '.join(missing)} missing: a recipe needs each of them.")
        try:
            return cls(**settings)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{place}{error}") from error

    def to_toml(self) -> str:
        settings = dataclasses.asdict(self)
        return toml.written({key: value for key, value in settings.items() if value != {}})

    def differences(self, other: Recipe) -> list[str]:
        """The settings that differ, each as 'name: own -> other'."""
        own, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return [f"{k}: {own[k]!r} -> {theirs[k]!r}" for k in own if own[k] != theirs[k]]


def _checked_text(name: str, value: Any, optional: bool) -> str | None:
    if value is None and optional:
        return None
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} is {value!r}: it must be a text.")
    return value


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: it must be true or false.")


def _checked_whole(name: str, value: Any, optional: bool) -> int | None:
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {value!r}: it must be an integer, {WHOLE[name]} or above.")
    if value < WHOLE[name]:
        raise ValueError(f"{name} is {value}: it must be {WHOLE[name]} or above.")
    return int(value)


def _checked_number(name: str, value: Any, optional: bool) -> float | None:
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}: it must be a number {RANGES[name]}.")
    if not ALLOWED[RANGES[name]](float(value)) or float(value) == float("inf"):
        raise ValueError(f"{name} is {value}: it must be finite, {RANGES[name]}.")
    return float(value)


def _checked_table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r}: it must be a table, such as {{'width': 64}}.")
    return _with_lists(value)


def _with_lists(value: Any) -> Any:
    """As it is written and read: tuples become lists, dates texts, and None is left out."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _with_lists(item) for key, item in value.items() if item is not None}
    return [_with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is not known."""
    known = sorted(known)
    return f"{what} '{name}' is unknown. Known: {', '.join(known)}.{did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest name that is known, as a question, or nothing."""
    meant = OTHER_WORDS.get(str(name).lower())
    if meant is not None and meant in known:
        return f" Did you mean '{meant}'?"
    close = difflib.get_close_matches(str(name).lower(), list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
