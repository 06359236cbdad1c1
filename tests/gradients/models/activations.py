"""Activations, in place and not, and layers without parameters between others that have them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.table import Raw, rows

PLAIN = (
    nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.ELU, nn.SELU, nn.CELU, nn.Hardswish, nn.Hardtanh,
    nn.Hardsigmoid, nn.ReLU6, nn.LogSigmoid, nn.Softshrink, nn.Tanhshrink, nn.Softsign, nn.GLU,
)  # fmt: skip
IN_PLACE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Hardswish, nn.SiLU, nn.ReLU6, nn.CELU, nn.SELU, nn.Mish,
    nn.Hardsigmoid,
)  # fmt: skip
IMAGES = (4, 4, 6, 8)


def in_place_between_linear(kind: type[nn.Module]) -> nn.Sequential:
    active = kind(inplace=True)
    return nn.Sequential(nn.Linear(4, 6), active, nn.Linear(6, 5), active, nn.Linear(5, 2))


def in_place_behind_all(kind: type[nn.Module]) -> nn.Sequential:
    active = kind(inplace=True)
    conv, last, norm = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 5, 1), nn.GroupNorm(2, 6)
    return nn.Sequential(conv, active, norm, active, last, active, nn.LayerNorm((4, 6)), active)


for _kind in PLAIN:
    _name = _kind.__name__.lower()
    rows(_name, lambda k=_kind: nn.Sequential(nn.Linear(4, 6), k()), (5, 3, 4))
for _kind in IN_PLACE:
    _name = _kind.__name__.lower()
    rows(f"{_name}_in_place", lambda k=_kind: in_place_between_linear(k), (5, 3, 4))
    rows(f"{_name}_in_place_on_images", lambda k=_kind: in_place_behind_all(k), IMAGES)
rows(
    "in_place_behind_matmul",
    lambda: Raw(
        lambda m, x: F.relu_(m.w @ F.relu_(torch.einsum("bti,io->bot", F.relu_(x @ m.v), m.v))),
        {"v": (4, 4), "w": (2, 4)},
    ),
    (5, 3, 4),
)
rows("prelu", lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()), (5, 3, 4))
rows("prelu_of_channels", lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.PReLU(4)), IMAGES)
rows("rrelu", lambda: nn.Sequential(nn.Linear(4, 3), nn.RReLU()).eval(), (5, 4), way="alone")


class Residual(nn.Module):
    """What torchvision's residual networks do in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(F.relu(self.norm(self.first(x)), inplace=True))
        out += x
        return F.relu(out, inplace=True)


rows("residual_in_place", lambda: nn.Sequential(Residual(), Residual()), IMAGES)

# Layers without parameters
for _name, _layers in {
    "max_and_average_pooling": lambda: (nn.MaxPool2d(2), nn.AvgPool2d(2)),
    "adaptive_pooling": lambda: (nn.AdaptiveMaxPool2d(3), nn.AdaptiveAvgPool2d(2)),
    "power_average_pooling": lambda: (nn.LPPool2d(2, 2),),
    "upsampling": lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), nn.Upsample(size=5)),
    "bicubic_upsampling": lambda: (nn.Upsample(scale_factor=2, mode="bicubic"),),
    "pixel_shuffle": lambda: (nn.PixelShuffle(2), nn.PixelUnshuffle(2)),
    "channel_shuffle": lambda: (nn.ChannelShuffle(2),),
    "padding": lambda: (nn.ReflectionPad2d(1), nn.ZeroPad2d(1), nn.CircularPad2d(1)),
    "fold_and_unfold": lambda: (nn.Unfold(2), nn.Fold((6, 8), 2)),
    "softmax_of_positions": lambda: (nn.Flatten(2), nn.Softmax(-1)),
}.items():
    rows(_name, lambda k=_layers: nn.Sequential(nn.Conv2d(4, 4, 1), *k()), IMAGES)
rows(
    "unpooling",
    lambda: nn.Conv2d(4, 4, 1),
    IMAGES,
    lambda m, x: F.max_unpool2d(*F.max_pool2d(m(x), 2, return_indices=True), 2),
)
rows(
    "grid_sampling",
    lambda: nn.Conv2d(4, 4, 1),
    IMAGES,
    lambda m, x: F.grid_sample(m(x), m(x)[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False),
)
rows("dropout_of_nothing", lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.0)), (5, 3, 4))
