"""ResNet9 with GroupNorm and scale norm: one more GroupNorm after each residual sum.

The network of Klause et al. (arXiv:2203.00324), whose scale norm brings the two branches of a sum
back to one scale; `width` (64 there) is that of the first convolution:

    block(w)  block(2w, pool)  residual(2w)  block(4w, pool)  block(4w, pool)  residual(4w)
    AdaptiveMaxPool(2x2)  Linear(classes)          block: Conv 3x3, GroupNorm(32), Mish

Guarantees: images of any size from 16 pixels a side, 160 as well as 32, with the same parameters:
2.4 million at width 64.  No BatchNorm, no buffer.  A width that 32 does not divide has as many
groups as both share.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

SMALLEST = 16  # pixels: three pools leave 2 x 2


def resnet9(input_shape: tuple[int, ...], classes: int, *, width: int = 64) -> nn.Module:
    """`input_shape` is (channels, height, width)."""
    if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST:
        raise ValueError(
            f"model 'resnet9' was given inputs of shape {tuple(input_shape)}: it takes images, "
            f"(channels, height, width), of {SMALLEST} pixels a side or more."
        )
    _check_width(width)
    return nn.Sequential(
        *_block(input_shape[0], width),
        *_block(width, 2 * width),
        nn.MaxPool2d(2),
        Residual(2 * width),
        *_block(2 * width, 4 * width),
        nn.MaxPool2d(2),
        *_block(4 * width, 4 * width),
        nn.MaxPool2d(2),
        Residual(4 * width),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 4 * width, classes),
    )


class Residual(nn.Module):
    """GroupNorm(x + block(block(x)))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_block(channels, channels), *_block(channels, channels))
        self.scale_norm = _norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale_norm(x + self.body(x))


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    # The bias would be undone by the norm that follows.
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), _norm(outputs), nn.Mish()]


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(32, channels), channels)


def _check_width(width: Any) -> None:
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(
            f"model 'resnet9' was given width={width!r}: it must be an integer, 1 or above. The "
            "paper has 64."
        )
