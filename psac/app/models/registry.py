"""A network by its name: `build("cnn", input_shape=(1, 28, 28), classes=10)`.

Guarantees for every network here: it maps inputs [n, *input_shape] to scores [n, classes]; a
sample's scores depend on that sample alone (no BatchNorm), so that the engine takes it as it is;
names, settings and shapes that do not fit are refused with those that do.  Initial weights come
from torch's generator and are public.  Pretrained encoders take token numbers in place of inputs
(psac.app.text); `takes_text` tells them apart.

To add a network: one file, one line in `MODELS`, one row in the table of tests/app/models.

>>> sum(p.numel() for p in build("cnn", input_shape=(1, 28, 28), classes=10).parameters())
26010
>>> names()
['cnn', 'linear', 'minilm', 'mlp', 'mpnet', 'resnet9', 'roberta-base']
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from psac.app.models.cnn import cnn
from psac.app.models.linear import linear
from psac.app.models.mlp import mlp
from psac.app.models.resnet9 import resnet9
from psac.app.models.text import encoder
from psac.app.text.classifier import Settings
from psac.app.text.pretrained import PRETRAINED
from psac.checks import positive, unknown

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": cnn,
    "linear": linear,
    "mlp": mlp,
    "resnet9": resnet9,
    **{name: encoder(name) for name in PRETRAINED},
}


def names() -> list[str]:
    return sorted(MODELS)


def takes_text(name: str) -> bool:
    """Whether the network of this name is a language model."""
    return name in PRETRAINED


def build(name: str, *, input_shape: tuple[int, ...], classes: int, **settings: Any) -> nn.Module:
    """A new network for inputs of this shape, without the batch, and so many classes."""
    check_settings(name, settings)
    _check_sizes(input_shape, classes)
    return MODELS[name](tuple(input_shape), classes, **settings)


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Refuses a network that is not known, or settings that it does not have or cannot take."""
    if name not in MODELS:
        raise ValueError(unknown("model", name, MODELS))
    known = list(inspect.signature(MODELS[name]).parameters)[2:]
    for setting in settings:
        if setting not in known:
            raise ValueError(unknown(f"{name} setting", setting, known))
    if takes_text(name):
        Settings(**settings)


def _check_sizes(input_shape: tuple[int, ...], classes: Any) -> None:
    if not input_shape or min(input_shape) < 1:
        raise ValueError(
            f"input_shape is {tuple(input_shape)}: give the shape of one input, without the batch, "
            "such as (1, 28, 28) for images or (64,) for features."
        )
    positive("classes", classes, least=2)
