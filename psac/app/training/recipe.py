"""All settings of a run, as one value and as a TOML file.

    recipe = Recipe.from_toml("mine.toml", epsilon=3.0)
    recipe.to_toml()

Guarantees: a run depends on its recipe, its data and, if `seed` is None, on fresh randomness;
`from_toml(to_toml())` is equal.  Before any data are read, a setting is refused if it is unknown,
missing, out of range or would be ignored.  A recipe does not depend on private data, unless its
settings were tuned on them, which costs privacy (`psac.tuned_epsilon`).

>>> settings = {"batch_size": 64, "epochs": 5, "learning_rate": 1, "epsilon": 3}
>>> Recipe(data="digits", model="linear", **settings).clipping()
PSAC(r=0.1, bound=1.0, scale=1.0)
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from psac import checks, sampling
from psac.app import models, toml
from psac.app.data.tables.schema import inlined
from psac.app.models.registry import check_settings
from psac.app.training.optimization import OPTIMIZERS, SCHEDULES
from psac.app.training.overrides import overridden
from psac.app.training.own_model import FORM, is_own
from psac.clipping import rules as clipping
from psac.clipping.rules import AdaptivePSAC, ClippingRule

ADAPTIVE = "adaptive_psac"
CHOICES: dict[str, Iterable[str]] = {
    "model": models.names(),
    "rule": [ADAPTIVE, *clipping.RULES],
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "precision": ("float32", "bfloat16"),
}
TEXTS = (
    *("data", "data_root", "model", "rule", "sampling", "optimizer", "schedule"),
    *("precision", "device"),
)
TABLES = ("data_settings", "model_settings")
FLAGS = ("test_is_public",)
WHOLE = {  # with the least value
    **{"batch_size": 1, "physical_batch_size": 1, "seed": 0},
    **{"copies": 1, "shift": 0},
}
RANGES: dict[str, str] = {
    "validation_fraction": "[0, 1)",
    "most_frequent_share": "(0, 1)",
    "r": "(0, inf)",
    "bound": "(0, inf)",
    "scale": "(0, inf)",
    "epsilon": "(0, inf)",
    "noise_multiplier": "[0, inf)",
    "delta": "(0, 1)",
    "epochs": "(0, inf)",
    "learning_rate": "(0, inf)",
    "momentum": "[0, 1)",
    "weight_decay": "[0, inf)",
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
    """The settings of one run.

    Args:
        data: A name in `psac.data`, or the path of your own data (own_data.py).
        data_root: The folder with the files of a named data set.
        data_settings: Arguments of the reader, such as the label of a table.  The content of the
            file `schema` takes the place of its path.
        validation_fraction: The share of the training records that is held out for evaluation,
            which stays private.  With 0, the run is evaluated on the test split.
        test_is_public: States that the test records are public.  Those of a named data set are
            public as published.
        most_frequent_share: The publicly known share of the most frequent class.  The accuracy is
            compared with it if there are no public test records.
        model: A name in `psac.models`, or FILE.py:FUNCTION for your own network (own_model.py).
        model_settings: Arguments of the network.
        rule: The clipping rule; `r`, `bound` and `scale` are its settings.  None is the default of
            the rule.  For adaptive_psac, `scale` is the initial one.
        epsilon: The budget that the noise is calibrated to, unless `noise_multiplier` is given.
        delta: None is 1 / (10 * records).
        copies: The number of copies of each image, of which all but the first are moved by up to
            `shift` pixels (`psac.models.ShiftedCopies`).
        precision: "bfloat16" computes losses and their gradients with autocast.  Norms, sums and
            noise keep their own precision.
        seed: None is secure.  A seed makes the run repeatable and NOT private.
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
    precision: str = "float32"
    seed: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in TEXTS:
            self._settle(name, _checked_text(name, getattr(self, name), self._optional(name)))
        for name, least in WHOLE.items():
            self._check_number(name, checks.positive, least=least)
        for name, limits in RANGES.items():
            self._check_number(name, checks.number, allowed=limits)
        for name in FLAGS:
            _check_flag(name, getattr(self, name))
        settings: Any = self.data_settings
        if isinstance(settings, Mapping):  # the schema as it is now, not when the run is resumed
            self._settle("data_settings", inlined(settings))
        for name in TABLES:
            self._settle(name, _checked_table(name, getattr(self, name)))
        self._check_together()

    def _settle(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_number(self, name: str, check: Callable[..., float], **limits: Any) -> None:
        value = getattr(self, name)
        if value is not None or not self._optional(name):
            self._settle(name, check(name, value, **limits))

    @classmethod
    def _optional(cls, name: str) -> bool:
        return cls.__dataclass_fields__[name].default is None

    def _check_together(self) -> None:
        own = is_own(self.model)
        for name, known in CHOICES.items():
            if getattr(self, name) not in known and not (own and name == "model"):
                hint = f" Or pass your own as {FORM}." if name == "model" else ""
                raise ValueError(checks.unknown(name, getattr(self, name), known) + hint)
        if not own:  # its settings are those of its function
            check_settings(self.model, self.model_settings)
        sampling.get(self.sampling)
        self.clipping()
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                "give either epsilon, to calibrate the noise to it, or noise_multiplier: "
                f"epsilon={self.epsilon}, noise_multiplier={self.noise_multiplier}."
            )
        if (self.copies > 1) != (self.shift > 0):
            raise ValueError(
                f"copies is {self.copies} and shift is {self.shift}: give both, such as copies = 2 "
                "and shift = 1, or neither. The first copy is not moved, and equal copies would "
                "have no effect."
            )
        if self.copies > 1 and models.takes_text(self.model):
            raise ValueError(
                f"copies is {self.copies}, but model '{self.model}' takes text, and copies are "
                "shifted images. Leave copies and shift out."
            )
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f"momentum is {self.momentum}, but optimizer '{self.optimizer}' would ignore it. "
                "Leave it out, or use optimizer 'sgd'."
            )

    def clipping(self) -> ClippingRule | AdaptivePSAC:
        """The clipping rule with its settings."""
        values = {"r": self.r, "bound": self.bound, "scale": self.scale}
        settings = {name: value for name, value in values.items() if value is not None}
        if self.rule != ADAPTIVE:
            return clipping.get(self.rule, **settings)
        if "scale" in settings:
            settings["initial_scale"] = settings.pop("scale")
        return AdaptivePSAC(**settings)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], **overrides: Any) -> Recipe:
        """The recipe in the file, with some settings overridden (overrides.py)."""
        written = toml.read(Path(path))
        settings = overridden(written, overrides)
        try:
            return cls.from_settings(settings)
        except (TypeError, ValueError) as error:
            if cls._is_to_blame(written, overrides, str(error)):
                raise type(error)(f"{path}: {error}") from error
            raise

    @classmethod
    def _is_to_blame(
        cls, written: Mapping[str, Any], overrides: Mapping[str, Any], error: str
    ) -> bool:
        """Whether the file itself is wrong, and not the overrides."""
        if error.split()[0] in overrides:
            return False
        try:
            cls.from_settings(written)
        except (TypeError, ValueError):
            return True
        return not overrides

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], *, place: str = "") -> Recipe:
        """The recipe with these settings; errors begin with `place`."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                raise ValueError(place + checks.unknown("setting", name, known, OTHER_WORDS))
        missing = [name for name in NEEDED if name not in settings]
        if missing:
            raise ValueError(f"{place}{', '.join(missing)} missing. A recipe needs these settings.")
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
        raise TypeError(f"{name} is {value!r}: it must be text.")
    return value


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: it must be true or false.")


def _checked_table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r}: it must be a table, such as {{'width': 64}}.")
    return _with_lists(value)


def _with_lists(value: Any) -> Any:
    """The value as TOML holds it: tuples become lists, dates text, and None is left out."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _with_lists(item) for key, item in value.items() if item is not None}
    return [_with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
