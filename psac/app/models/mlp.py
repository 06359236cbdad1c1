"""A multilayer perceptron on the flattened input, with tanh between its layers.

tanh is bounded, and so are the gradients behind it, which suits clipping better than ReLU
(Papernot et al., arXiv:2007.14191).  Guarantees: as many hidden layers as `hidden` lists; none is
allowed, and leaves 'linear' with a random start.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from torch import nn


def mlp(input_shape: tuple[int, ...], classes: int, *, hidden: Sequence[int] = (128,)) -> nn.Module:
    """`input_shape` is any; `hidden` are the widths of the hidden layers."""
    _check_hidden(hidden)
    sizes = [math.prod(input_shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _check_hidden(hidden: Any) -> None:
    listed = isinstance(hidden, Sequence) and not isinstance(hidden, str)
    if not listed or not all(type(size) is int and size > 0 for size in hidden):
        raise ValueError(
            f"model 'mlp' was given hidden={hidden!r}: it must be a list of integers above 0, the "
            "widths of the hidden layers, such as [128, 64]."
        )
