"""Pictures in, pictures or places out: segmentation, restoration, detection, warping."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import RECORDS, Case, classes, cross_entropy, numbers, squared_error
from .convolutions import conv, head, normed


class UNet(nn.Module):
    def __init__(self, inputs: int, outputs: int, width: int = 16) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [normed(inputs, width), normed(width, 2 * width), normed(2 * width, 4 * width)]
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(w, w // 2, 2, 2) for w in (4 * width, 2 * width))
        self.joined = nn.ModuleList([normed(4 * width, 2 * width), normed(2 * width, width)])
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        x = self.down[2](F.max_pool2d(second, 2))
        for up, join, skipped in zip(self.up, self.joined, (second, first), strict=True):
            x = join(torch.cat([up(x), skipped], 1))
        return self.last(x)


def unet() -> Case:
    """U-Net with dice and cross entropy"""

    def loss(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        scores = model(x).squeeze(1)
        inside = scores.sigmoid()
        overlap = 2 * (inside * mask).sum((1, 2)) / (inside.sum((1, 2)) + mask.sum((1, 2)) + 1)
        return F.binary_cross_entropy_with_logits(scores, mask) + (1 - overlap).mean()

    return UNet(3, 1), loss, (numbers(3, 32, 32), classes(2, 32, 32).float())


class AtrousPyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(normed(3, 32, 3, 2), normed(32, 32))
        self.branches = nn.ModuleList(
            nn.Conv2d(32, 16, 3, padding=rate, dilation=rate) for rate in (1, 2, 4)
        )
        self.last = nn.Conv2d(48, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.trunk(x)
        y = self.last(F.relu(torch.cat([branch(y) for branch in self.branches], 1)))
        return F.interpolate(y, x.shape[-2:], mode="bilinear", align_corners=False)


def deeplab() -> Case:
    """DeepLab (dilated pyramid, bilinear upsampling)"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, ignore_index=5)

    return AtrousPyramid(), loss, (numbers(3, 32, 32), classes(6, 32, 32))


def super_resolution() -> Case:
    """Super-resolution by pixel shuffle"""
    model = nn.Sequential(
        conv(3, 32), nn.PReLU(), conv(32, 32), nn.PReLU(), conv(32, 12), nn.PixelShuffle(2)
    )
    return model, squared_error, (numbers(3, 16, 16), numbers(3, 32, 32))


def denoiser() -> Case:
    """DnCNN that learns the noise it is given"""
    model = nn.Sequential(normed(1, 32), normed(32, 32), normed(32, 32), conv(32, 1))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        noise = 0.1 * torch.randn_like(x)
        return F.mse_loss(model(x + noise), noise)

    return model, loss, (numbers(1, 28, 28),)


class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Sequential(normed(1, 8, 5, 2), normed(8, 8, 5, 2), head(8, 6))
        self.body = nn.Sequential(normed(1, 16, 3, 2), head(16))
        self.register_buffer("identity", torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def forward(self, x: Tensor) -> Tensor:
        theta = (self.identity + 0.1 * self.locate(x)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return self.body(F.grid_sample(x, grid, align_corners=False))


def spatial_transformer() -> Case:
    """Spatial transformer (grid_sample)"""
    return SpatialTransformer(), cross_entropy, (numbers(1, 28, 28), classes(10))


class Deformable(nn.Module):
    """Each place gathers from four places of its own choice."""

    def __init__(self, channels: int = 16, points: int = 4) -> None:
        super().__init__()
        self.stem, self.points = normed(3, channels, 3, 2), points
        self.offsets = nn.Conv2d(channels, 2 * points, 3, padding=1)
        self.weights = nn.Conv2d(channels, points, 1)
        self.last = head(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        size = x.shape[-1]
        line = torch.linspace(-1, 1, size)
        base = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
        moved = self.offsets(x).unflatten(1, (self.points, 2)).permute(0, 1, 3, 4, 2)
        grid = (base + 0.1 * moved).flatten(1, 2)
        seen = F.grid_sample(x, grid, align_corners=True).unflatten(2, (self.points, size))
        return self.last((seen * self.weights(x).softmax(1).unsqueeze(1)).sum(2))


def deformable() -> Case:
    """Deformable sampling with learned offsets"""
    return Deformable(), cross_entropy, (numbers(3, 32, 32), classes(10))


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.estimate = nn.Sequential(normed(6, 16), normed(16, 16), conv(16, 2))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.estimate(torch.cat([first, second], 1))


def optical_flow() -> Case:
    """Optical flow: a warped picture is compared with another"""

    def loss(model: nn.Module, first: Tensor, second: Tensor) -> Tensor:
        flow = model(first, second).permute(0, 2, 3, 1)
        line = torch.linspace(-1, 1, first.shape[-1])
        base = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
        warped = F.grid_sample(second, base + 0.1 * flow, align_corners=True)
        smooth = flow.diff(dim=1).abs().mean() + flow.diff(dim=2).abs().mean()
        return F.l1_loss(warped, first) + 0.1 * smooth

    return Flow(), loss, (numbers(3, 24, 24), numbers(3, 24, 24))


class Anchors(nn.Module):
    def __init__(self, anchors: int = 3, kinds: int = 4) -> None:
        super().__init__()
        self.trunk = nn.Sequential(normed(3, 32, 3, 2), normed(32, 64, 3, 2))
        self.kinds, self.boxes = nn.Conv2d(64, anchors * kinds, 1), nn.Conv2d(64, anchors * 4, 1)
        self.num_kinds = kinds

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        kinds = self.kinds(x).unflatten(1, (-1, self.num_kinds)).permute(0, 1, 3, 4, 2)
        return kinds.flatten(1, 3), self.boxes(x).unflatten(1, (-1, 4)).permute(
            0, 1, 3, 4, 2
        ).flatten(1, 3)


def detector() -> Case:
    """Anchors with focal loss and smooth L1"""

    def loss(model: nn.Module, x: Tensor, kinds: Tensor, boxes: Tensor) -> Tensor:
        scores, places = model(x)
        wanted = F.one_hot(kinds, scores.shape[-1]).float()
        plain = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
        focal = ((wanted - scores.sigmoid()).abs() ** 2 * plain).sum(-1).mean()
        found = (kinds > 0).float().unsqueeze(-1)
        error = F.smooth_l1_loss(places, boxes, reduction="none")
        return focal + (found * error).sum() / found.sum().clamp(min=1)

    return Anchors(), loss, (numbers(3, 32, 32), classes(4, 192), numbers(192, 4))


def keypoints() -> Case:
    """Key points by soft-argmax of heat maps"""
    model = nn.Sequential(normed(3, 32, 3, 2), normed(32, 32), nn.Conv2d(32, 5, 1))

    def loss(model: nn.Module, x: Tensor, places: Tensor) -> Tensor:
        heat = model(x)
        share = heat.flatten(2).softmax(-1).view_as(heat)
        line = torch.linspace(0, 1, heat.shape[-1])
        found = torch.stack([(share.sum(2) * line).sum(-1), (share.sum(3) * line).sum(-1)], -1)
        return (found - places).norm(dim=-1).mean()

    return model, loss, (numbers(3, 32, 32), torch.rand(RECORDS, 5, 2))


class Capsules(nn.Module):
    def __init__(self, routes: int = 3) -> None:
        super().__init__()
        self.first, self.routes = nn.Conv2d(1, 32, 9, 4), routes
        self.transform = nn.Parameter(0.1 * torch.randn(10, 100, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        capsules = self.first(x).flatten(1).unflatten(1, (100, 8))
        votes = torch.einsum("bcd,ocde->boce", capsules, self.transform)
        scores = torch.zeros_like(votes[..., :1])
        for _ in range(self.routes):
            outputs = (scores.softmax(1) * votes).sum(2, keepdim=True)
            length = outputs.square().sum(-1, keepdim=True)
            outputs = outputs * length.sqrt() / (1 + length)
            scores = scores + (votes * outputs).sum(-1, keepdim=True)
        return outputs.squeeze(2).norm(dim=-1)


def capsules() -> Case:
    """Capsules with routing, margin loss"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        lengths, wanted = model(x), F.one_hot(y, 10)
        return (
            (wanted * F.relu(0.9 - lengths) ** 2 + (1 - wanted) * F.relu(lengths - 0.1) ** 2)
            .sum(1)
            .mean()
        )

    return Capsules(), loss, (numbers(1, 25, 25), classes(10))


MODELS = (
    unet, deeplab, super_resolution, denoiser, spatial_transformer, deformable, optical_flow,
    detector, keypoints, capsules,
)  # fmt: skip
