"""Convolutions of 1 to 3 dimensions, ordinary and transposed, of images and of frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.gradients.table import rows

PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
SIZES = {1: (4, 4, 7), 2: (4, 4, 5, 6), 3: (3, 4, 4, 5, 4)}


def stacked(*layers: nn.Module) -> nn.Sequential:
    """With something between them, so that inputs have gradients too."""
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


for _dims, _conv in PLAIN.items():
    _shape, _name = SIZES[_dims], f"conv{_dims}d"
    for _mode in ("zeros", "circular", "reflect", "replicate"):
        rows(
            f"{_name}_{_mode}",
            lambda c=_conv, m=_mode: stacked(
                c(4, 3, 3, padding=1, padding_mode=m), c(3, 2, 3, padding=2, padding_mode=m)
            ),
            _shape,
        )
        rows(
            f"{_name}_same_{_mode}",
            lambda c=_conv, m=_mode: stacked(
                c(4, 3, 3, padding="same", padding_mode=m),
                c(3, 2, 2, padding="same", padding_mode=m),
            ),
            _shape,
        )
    rows(
        f"{_name}_stride_dilation_groups",
        lambda c=_conv: stacked(c(4, 6, 2, groups=2, dilation=2, stride=2, padding=1)),
        _shape,
    )
    rows(f"{_name}_depthwise", lambda c=_conv: c(4, 8, 3, groups=4, padding=1), _shape)
    rows(f"{_name}_valid_no_bias", lambda c=_conv: c(4, 3, 2, padding="valid", bias=False), _shape)
    rows(f"{_name}_pointwise", lambda c=_conv: stacked(c(4, 5, 1), c(5, 2, 1)), _shape)
    rows(f"{_name}_of_one_image", lambda c=_conv: c(4, 5, 2), _shape, lambda m, x: m(x[0]))
for _dims, _conv in TRANSPOSED.items():
    _shape, _name = SIZES[_dims], f"conv_transpose{_dims}d"
    rows(
        _name,
        lambda c=_conv: stacked(
            c(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), c(6, 3, 2, dilation=2)
        ),
        _shape,
    )
    rows(
        f"{_name}_of_a_given_size",
        lambda c=_conv: c(4, 3, 3, stride=2),
        _shape,
        lambda m, x: m(x, output_size=[2 * size + 2 for size in x.shape[2:]]),
    )
    rows(f"{_name}_of_one_image", lambda c=_conv: c(4, 5, 2), _shape, lambda m, x: m(x[0]))

rows(
    "conv2d_kernel_wider_than_stride",
    lambda: stacked(nn.Conv2d(1, 4, 8, stride=2, padding=2), nn.Conv2d(4, 6, 4, stride=2)),
    (5, 1, 20, 20),
)
rows(
    "conv2d_many_channels",
    lambda: stacked(nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(24, 16, 3, dilation=2)),
    (3, 16, 9, 8),
)
rows("conv2d_few_positions", lambda: nn.Conv2d(16, 32, 3), (3, 16, 4, 4))
rows("conv2d_few_positions_groups", lambda: nn.Conv2d(32, 32, 3, groups=2, stride=2), (3, 32, 5, 5))
rows("conv2d_groups", lambda: stacked(nn.Conv2d(4, 6, 3, groups=2)), (4, 4, 7, 7))
rows(
    "conv2d_depthwise_wide",
    lambda: stacked(
        nn.Conv2d(4, 8, 5, groups=4, padding=2), nn.Conv2d(8, 8, 7, groups=8, stride=2, padding=3)
    ),
    (5, 4, 11, 18),
)
rows("conv1d_few_positions", lambda: nn.Conv1d(16, 32, 3, dilation=2), (4, 16, 6))
rows("conv2d_uneven_kernel", lambda: nn.Conv2d(3, 4, (2, 3), stride=(1, 2)), (4, 3, 6, 7))


class Frames(nn.Module):
    """A record has several frames, [1, t, ...], which the layers see as a batch."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(0, 1)).tanh().unflatten(0, x.shape[:2])


def turned(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.transpose(0, 1))


rows("conv_over_frames", lambda: Frames(nn.Conv2d(2, 3, 3)), (4, 3, 2, 5, 5))
rows(
    "conv_over_frames_batch_second",
    lambda: Frames(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 4, 2)),
    (4, 3, 2, 5, 5),
    turned,
)
rows(
    "conv_over_frames_stride_padding_groups",
    lambda: Frames(
        nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(6, 34, 3, padding=2, groups=2)
    ),
    (5, 2, 4, 7, 6),
)
rows("conv1d_over_frames", lambda: Frames(nn.Conv1d(3, 5, 3, dilation=2)), (4, 3, 3, 8))
rows(
    "conv_transpose_over_frames",
    lambda: Frames(nn.ConvTranspose2d(2, 3, 3, stride=2)),
    (4, 3, 2, 5, 5),
)

for _dilation in (1, 2):
    rows(
        f"max_pool_of_stride_one_dilation_{_dilation}",
        lambda d=_dilation: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d((2, 3), 1, dilation=d), nn.Conv2d(3, 2, 2)
        ),
        (4, 2, 9, 10),
    )
rows(
    "max_pool_of_torch",
    lambda: nn.Conv2d(2, 3, 3),
    (4, 2, 9, 10),
    lambda model, x: torch.max_pool2d(model(x), 2, 1),
)
