"""Convolutional networks for images, sounds and films."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import Case, classes, cross_entropy, numbers


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


def normed(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    """Convolution, group norm, ReLU in place."""
    norm = nn.GroupNorm(min(8, outputs), outputs)
    return nn.Sequential(conv(inputs, outputs, size, stride, groups), norm, nn.ReLU(inplace=True))


def head(channels: int, outputs: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))


def lenet() -> Case:
    """LeNet with tanh and average pooling"""
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 10),
    )  # fmt: skip
    return model, cross_entropy, (numbers(1, 28, 28), classes(10))


def vgg() -> Case:
    """VGG, max pooling, dropout"""
    blocks = [
        nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(o, o, 3, padding=1),
            nn.ReLU(inplace=True), nn.MaxPool2d(2),
        )
        for i, o in ((3, 16), (16, 32), (32, 64))
    ]  # fmt: skip
    last = [nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(True), nn.Dropout(), nn.Linear(128, 10)]
    return nn.Sequential(*blocks, *last), cross_entropy, (numbers(3, 32, 32), classes(10))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            normed(inputs, outputs, 3, stride), conv(outputs, outputs), nn.GroupNorm(8, outputs)
        )
        self.short = nn.Identity() if inputs == outputs else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.body(x) + self.short(x))


def resnet() -> Case:
    """ResNet with group norm, ReLU in place"""
    blocks = [Residual(16, 16), Residual(16, 32, 2), Residual(32, 64, 2)]
    model = nn.Sequential(normed(3, 16), *blocks, head(64))
    return model, cross_entropy, (numbers(3, 32, 32), classes(10))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            normed(channels, half, 1), normed(half, half, groups=groups), conv(half, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def resnext() -> Case:
    """ResNeXt: bottlenecks with grouped convolutions"""
    blocks = [Bottleneck(64, 8), Bottleneck(64, 8), normed(64, 128, 3, 2), Bottleneck(128, 8)]
    model = nn.Sequential(normed(3, 64, 3, 2), *blocks, head(128))
    return model, cross_entropy, (numbers(3, 32, 32), classes(10))


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand, self.contract = (
            nn.Linear(channels, 4 * channels),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.contract(F.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> Case:
    """ConvNeXt (depthwise 7x7)"""
    stem, down = nn.Conv2d(3, 32, 4, 4), nn.Conv2d(32, 64, 2, 2)
    model = nn.Sequential(
        stem,
        ConvNeXtBlock(32),
        ConvNeXtBlock(32),
        down,
        ConvNeXtBlock(64),
        ConvNeXtBlock(64),
        head(64),
    )
    return model, cross_entropy, (numbers(3, 64, 64), classes(10))


class InvertedResidual(nn.Module):
    """MobileNet's block; with `squeeze` EfficientNet's."""

    def __init__(self, channels: int, size: int, squeeze: bool) -> None:
        super().__init__()
        wide = 4 * channels
        self.expand, self.depthwise = conv(channels, wide, 1), conv(wide, wide, size, groups=wide)
        self.norms = nn.ModuleList(nn.GroupNorm(8, c) for c in (wide, wide, channels))
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide // 16, 1), nn.SiLU(),
            nn.Conv2d(wide // 16, wide, 1), nn.Sigmoid(),
        ) if squeeze else None  # fmt: skip
        self.act = nn.SiLU(inplace=True) if squeeze else nn.ReLU6(inplace=True)
        self.contract = conv(wide, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norms[0](self.expand(x)))
        y = self.act(self.norms[1](self.depthwise(y)))
        if self.gate is not None:
            y = y * self.gate(y)
        return x + self.norms[2](self.contract(y))


def mobilenet() -> Case:
    """MobileNetV2 (inverted residuals, ReLU6)"""
    blocks = [InvertedResidual(16, 3, False), normed(16, 32, 3, 2), InvertedResidual(32, 3, False)]
    model = nn.Sequential(normed(3, 16, 3, 2), *blocks, head(32))
    return model, cross_entropy, (numbers(3, 32, 32), classes(10))


def efficientnet() -> Case:
    """EfficientNet (squeeze and excite, 5x5 depthwise)"""
    blocks = [InvertedResidual(16, 3, True), normed(16, 32, 3, 2), InvertedResidual(32, 5, True)]
    model = nn.Sequential(normed(3, 16, 3, 2), *blocks, head(32))
    return model, cross_entropy, (numbers(3, 32, 32), classes(10))


class DenseBlock(nn.Module):
    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(normed(channels + k * growth, growth) for k in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet() -> Case:
    """DenseNet (concatenated features)"""
    blocks = [DenseBlock(16, 8, 4), normed(48, 32, 1), nn.AvgPool2d(2), DenseBlock(32, 8, 4)]
    return nn.Sequential(normed(3, 16), *blocks, head(64)), cross_entropy, (
        numbers(3, 24, 24), classes(10),
    )  # fmt: skip


class Inception(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one, self.three = normed(inputs, 16, 1), normed(inputs, 16, 3)
        self.five = nn.Sequential(normed(inputs, 8, 1), normed(8, 16, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), normed(inputs, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def inception() -> Case:
    """Inception (branches, 5x5)"""
    model = nn.Sequential(normed(3, 16, 3, 2), Inception(16), Inception(64), head(64))
    return model, cross_entropy, (numbers(3, 32, 32), classes(10))


class Shuffle(nn.Module):
    def __init__(self, channels: int, groups: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 1, groups=groups)
        self.depthwise = conv(channels, channels, groups=channels)
        self.last, self.groups = nn.Conv2d(channels, channels, 1, groups=groups), groups

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        y = y.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        return F.relu(x + self.last(self.depthwise(y)))


def shufflenet() -> Case:
    """ShuffleNet (grouped 1x1, channel shuffle)"""
    model = nn.Sequential(normed(3, 48, 3, 2), Shuffle(48), Shuffle(48), head(48))
    return model, cross_entropy, (numbers(3, 32, 32), classes(10))


class StandardizedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


def nfnet() -> Case:
    """Weight standardization (NFNet, BiT)"""
    blocks = [
        StandardizedConv(3, 32, 3, 2, 1),
        nn.GELU(),
        StandardizedConv(32, 32, 3, 1, 1),
        nn.GELU(),
    ]
    return nn.Sequential(*blocks, head(32)), cross_entropy, (numbers(3, 32, 32), classes(10))


def frozen_batch_norm() -> Case:
    """Fine-tuning with batch norm in eval mode"""
    model = nn.Sequential(
        conv(3, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU(True), conv(32, 32), head(32)
    )
    model[1].eval()
    return model, cross_entropy, (numbers(3, 32, 32), classes(10))


def frozen_backbone() -> Case:
    """A trained head on a frozen backbone"""
    model = nn.Sequential(normed(3, 32), normed(32, 32, 3, 2), normed(32, 64, 3, 2), head(64))
    for block in list(model)[:3]:
        block.requires_grad_(False)
    return model, cross_entropy, (numbers(3, 32, 32), classes(10))


def instance_norm() -> Case:
    """Instance norm with weights, reflected padding"""
    layers = [nn.ReflectionPad2d(1), nn.Conv2d(3, 24, 3), nn.InstanceNorm2d(24, affine=True)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.2), head(24)), cross_entropy, (
        numbers(3, 24, 24), classes(10),
    )  # fmt: skip


def conv3d() -> Case:
    """Films: three-dimensional convolutions"""
    model = nn.Sequential(
        nn.Conv3d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
        nn.Linear(32, 5),
    )  # fmt: skip
    return model, cross_entropy, (numbers(3, 8, 16, 16), classes(5))


def sound() -> Case:
    """Sounds: strided one-dimensional convolutions"""
    model = nn.Sequential(
        nn.Conv1d(1, 32, 80, 16), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool1d(4),
        nn.Conv1d(32, 64, 3), nn.GroupNorm(8, 64), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Linear(64, 12),
    )  # fmt: skip
    return model, cross_entropy, (numbers(1, 4000), classes(12))


MODELS = (
    lenet, vgg, resnet, resnext, convnext, mobilenet, efficientnet, densenet, inception, shufflenet,
    nfnet, frozen_batch_norm, frozen_backbone, instance_norm, conv3d, sound,
)  # fmt: skip
