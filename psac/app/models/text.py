"""Pretrained encoders as networks of the registry, one function for each.

The input of such a network are token numbers, which its own tokenizer makes (psac.app.text).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from psac.app.text.classifier import Settings, build


def encoder(name: str) -> Callable[..., nn.Module]:
    """A function like those of the other networks; `input_shape` is the longest text."""

    def built(input_shape: tuple[int, ...], classes: int, **settings: Any) -> nn.Module:
        return build(name, classes=classes, **settings)

    first = list(inspect.signature(built).parameters.values())[:2]
    own = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY)
        for field in dataclasses.fields(Settings)
    ]
    built.__signature__ = inspect.Signature([*first, *own])  # type: ignore[attr-defined]
    return built
