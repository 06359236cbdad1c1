"""Settings of a file with some of them replaced.

A setting may belong to another one: `r` to its rule, `momentum` to its optimizer.  Whoever asks for
another rule means that rule with its own r, so what belonged to the old one goes, unless it is
given, too.  Of `epsilon` and `noise_multiplier`, either takes the place of the other.  Tables are
joined key by key.

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
IN_PLACE_OF = {"epsilon": "noise_multiplier", "noise_multiplier": "epsilon"}


def overridden(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the overrides, of which each counts as given even if it is None."""
    kept = {name: value for name, value in settings.items() if not _goes(name, settings, overrides)}
    joined = kept | dict(overrides)
    for name, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(kept.get(name), Mapping):
            joined[name] = {**kept[name], **value}
    return joined


def _goes(name: str, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> bool:
    owner = BELONGS_TO.get(name, "")
    moved = owner in overrides and overrides[owner] != settings.get(owner)
    return moved or overrides.get(IN_PLACE_OF.get(name, "")) is not None
