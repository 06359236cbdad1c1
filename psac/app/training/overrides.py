"""Overrides settings of a recipe.

Some settings belong to another one, such as `r` to its rule.  If the rule is overridden, the old r
is dropped unless it is overridden, too.  `epsilon` and `noise_multiplier` replace each other.
Tables are merged key by key.

>>> overridden({"rule": "psac", "r": 0.1, "bound": 0.5}, {"rule": "abadi"})
{'rule': 'abadi', 'bound': 0.5}
>>> overridden({"model": "mlp", "model_settings": {"hidden": [8]}}, {"epochs": 2})
{'model': 'mlp', 'model_settings': {'hidden': [8]}, 'epochs': 2}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BELONGS_TO = {
    "data_root": "data",
    "data_settings": "data",
    "test_is_public": "data",
    "most_frequent_share": "data",
    "model_settings": "model",
    "r": "rule",
    "scale": "rule",
    "momentum": "optimizer",
}
REPLACES = {"epsilon": "noise_multiplier", "noise_multiplier": "epsilon"}


def overridden(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the overrides, of which None counts as a value."""
    remaining = {
        name: value
        for name, value in settings.items()
        if not _is_dropped(name, settings, overrides)
    }
    joined = remaining | dict(overrides)
    for name, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(remaining.get(name), Mapping):
            joined[name] = {**remaining[name], **value}
    return joined


def _is_dropped(name: str, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> bool:
    owner = BELONGS_TO.get(name, "")
    moved = owner in overrides and overrides[owner] != settings.get(owner)
    return moved or overrides.get(REPLACES.get(name, "")) is not None
