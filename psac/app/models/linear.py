"""Logistic regression: one Linear layer on the flattened input, or on features made before.

Guarantees: a convex loss, and weights that start at zero: the first step of every run is the same,
whatever the seed, and the norm of a sample's gradient is that of its input, (1, x), times that of
its error.  Under a small budget on good features it is hard to beat (Tramer and Boneh,
arXiv:2011.11660).
"""

from __future__ import annotations

import math

from torch import nn


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """`input_shape` is any: (channels, height, width) or (features,)."""
    layer = nn.Linear(math.prod(input_shape), classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)
