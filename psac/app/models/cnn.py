"""The small convolutional network of Tramer and Boneh (arXiv:2011.11660), for MNIST and the like.

    Conv(16, 8x8, stride 2, padding 2)  tanh  MaxPool(2, stride 1)
    Conv(32, 4x4, stride 2)             tanh  MaxPool(2, stride 1)
    Linear(32)                          tanh  Linear(classes)

Guarantees: 26,010 parameters on 1x28x28 images of 10 classes, as in the paper; for other images
only the channels and the width of the first Linear differ.  An image has 16 pixels a side or more;
a smaller one leaves nothing to the second pool, and is refused.
"""

from __future__ import annotations

import torch
from torch import nn

SMALLEST = 16  # pixels: 16 -> 7 -> 6 -> 2 -> 1


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """`input_shape` is (channels, height, width)."""
    if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST:
        raise ValueError(
            f"model 'cnn' was given inputs of shape {tuple(input_shape)}: it takes images, "
            f"(channels, height, width), of {SMALLEST} pixels a side or more. For smaller ones and "
            "for features take 'linear' or 'mlp'."
        )
    channels, height, width = input_shape
    network = nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * _left_of(height) * _left_of(width), 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )
    # With channels last in memory, torch's pools on a CPU are six times as fast.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _left_of(pixels: int) -> int:
    """How many of so many pixels a side come out of the second pool."""
    after_first_pool = (pixels + 2 * 2 - 8) // 2 + 1 - 1
    return (after_first_pool - 4) // 2 + 1 - 1
