"""Transformers and mixers over patches of pictures."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import heads_of
from .batches import RECORDS, Case, classes, cross_entropy, numbers
from .convolutions import head, normed

WIDTH = 96


class Patches(nn.Module):
    def __init__(self, size: int = 4, width: int = WIDTH) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, size, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(x).flatten(2).transpose(1, 2)


def layer(width: int = WIDTH, dropout: float = 0.0) -> nn.Module:
    return nn.TransformerEncoderLayer(
        width, 4, 2 * width, dropout, F.gelu, batch_first=True, norm_first=True
    )


class ViT(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.patches = Patches()
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(1, 65, WIDTH))
        self.layers = nn.ModuleList(layer(dropout=dropout) for _ in range(2))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.layers:
            x = block(x)
        return self.head(x[:, 0])


def vit() -> Case:
    """ViT with a class token"""
    return ViT(), cross_entropy, (numbers(3, 32, 32), classes(10))


def vit_dropout() -> Case:
    """ViT with dropout and random flips inside the loss"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        flipped = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(-1))
        return F.cross_entropy(model(flipped), y, label_smoothing=0.1)

    return ViT(0.1), loss, (numbers(3, 32, 32), classes(10))


class Windows(nn.Module):
    """Attention within windows that are shifted, as in Swin, with a learned bias."""

    def __init__(self, side: int, window: int, shift: int) -> None:
        super().__init__()
        self.side, self.window, self.shift = side, window, shift
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.bias = nn.Parameter(torch.zeros(4, (2 * window - 1) ** 2))
        place = torch.cartesian_prod(torch.arange(window), torch.arange(window))
        between = place[:, None] - place[None, :] + window - 1
        self.register_buffer("index", between[..., 0] * (2 * window - 1) + between[..., 1])
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 192), nn.GELU(), nn.Linear(192, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        count, w = self.side // self.window, self.window
        y = (
            self.norm(x)
            .unflatten(1, (self.side, self.side))
            .roll((-self.shift, -self.shift), (1, 2))
        )
        y = y.view(-1, count, w, count, w, WIDTH).transpose(2, 3).reshape(-1, w * w, WIDTH)
        q, k, v = (heads_of(t, 4) for t in self.qkv(y).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:, self.index])
        y = self.out(y.transpose(1, 2).flatten(2)).view(-1, count, count, w, w, WIDTH)
        y = y.transpose(2, 3).reshape(-1, self.side, self.side, WIDTH)
        x = x + y.roll((self.shift, self.shift), (1, 2)).flatten(1, 2)
        return x + self.mlp(x)


class Pooled(nn.Module):
    """Blocks over patches, their mean, a head."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Patches(), *blocks, nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(1))


def swin() -> Case:
    """Swin: shifted windows, relative bias"""
    return Pooled(Windows(8, 4, 0), Windows(8, 4, 2)), cross_entropy, (
        numbers(3, 32, 32), classes(10),
    )  # fmt: skip


class Mixer(nn.Module):
    def __init__(self, places: int = 64) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.over_places = nn.Sequential(nn.Linear(places, 128), nn.GELU(), nn.Linear(128, places))
        self.over_channels = nn.Sequential(nn.Linear(WIDTH, 192), nn.GELU(), nn.Linear(192, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_places(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norms[1](x))


def mixer() -> Case:
    """MLP-Mixer"""
    return Pooled(Mixer(), Mixer()), cross_entropy, (numbers(3, 32, 32), classes(10))


class Gated(nn.Module):
    """gMLP: a gate across places."""

    def __init__(self, places: int = 64) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
        self.inner, self.last = nn.LayerNorm(128), nn.Linear(128, WIDTH)
        self.across = nn.Conv1d(places, places, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.gelu(self.first(self.norm(x))).chunk(2, -1)
        return x + self.last(left * self.across(self.inner(right)))


def gmlp() -> Case:
    """gMLP (a 1x1 convolution across places)"""
    return Pooled(Gated(), Gated()), cross_entropy, (numbers(3, 32, 32), classes(10))


class ConvMixerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, groups=width, padding="same")
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(2))
        self.pointwise = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norms[0](F.gelu(self.depthwise(x)))
        return self.norms[1](F.gelu(self.pointwise(x)))


def convmixer() -> Case:
    """ConvMixer (depthwise with padding='same')"""
    model = nn.Sequential(nn.Conv2d(3, 64, 4, 4), ConvMixerBlock(64), ConvMixerBlock(64), head(64))
    return model, cross_entropy, (numbers(3, 32, 32), classes(10))


class Perceiver(nn.Module):
    def __init__(self, latents: int = 16) -> None:
        super().__init__()
        self.patches, self.latents = Patches(), nn.Parameter(0.02 * torch.randn(latents, WIDTH))
        self.cross = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.inner, self.head = layer(), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        latents = self.latents.expand(len(x), -1, -1)
        for _ in range(2):  # the same weights twice
            latents = latents + self.cross(latents, x, x, need_weights=False)[0]
            latents = self.inner(latents)
        return self.head(latents.mean(1))


def perceiver() -> Case:
    """Perceiver (latents, shared weights)"""
    return Perceiver(), cross_entropy, (numbers(3, 32, 32), classes(10))


class DETR(nn.Module):
    def __init__(self, queries: int = 8) -> None:
        super().__init__()
        self.trunk = nn.Sequential(normed(3, 48, 3, 2), normed(48, WIDTH, 3, 2))
        self.queries = nn.Embedding(queries, WIDTH)
        self.body = nn.Transformer(WIDTH, 4, 1, 1, 192, 0.0, batch_first=True)
        self.kinds, self.boxes = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = self.trunk(x).flatten(2).transpose(1, 2)
        found = self.body(places, self.queries.weight.expand(len(x), -1, -1))
        return self.kinds(found), self.boxes(found).sigmoid()


def detr() -> Case:
    """DETR with a fixed matching"""

    def loss(model: nn.Module, x: Tensor, kinds: Tensor, boxes: Tensor) -> Tensor:
        scores, places = model(x)
        kind = F.cross_entropy(scores.flatten(0, 1), kinds.flatten())
        return kind + F.l1_loss(places, boxes)

    return DETR(), loss, (numbers(3, 32, 32), classes(5, 8), torch.rand(RECORDS, 8, 4))


class Masked(nn.Module):
    """A masked autoencoder: a quarter of the patches is seen, in a random order."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.encoder, self.decoder = nn.Linear(48, WIDTH), layer(), layer()
        self.places = nn.Parameter(0.02 * torch.randn(64, WIDTH))
        self.mask, self.out = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Linear(WIDTH, 48)

    def forward(self, patches: Tensor) -> Tensor:
        order = torch.rand(patches.shape[:2]).argsort(1)
        back = order.argsort(1).unsqueeze(-1)
        x = self.patches(patches) + self.places
        seen = x.gather(1, order[:, :16, None].expand(-1, -1, WIDTH))
        hidden = torch.cat([self.encoder(seen), self.mask.expand(len(x), 48, -1)], 1)
        return self.out(self.decoder(hidden.gather(1, back.expand(-1, -1, WIDTH)) + self.places))


def masked_autoencoder() -> Case:
    """Masked autoencoder (random order, gather)"""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        patches = F.unfold(x, 4, stride=4).transpose(1, 2)
        return F.mse_loss(model(patches), patches)

    return Masked(), loss, (numbers(3, 32, 32),)


MODELS = (
    vit, vit_dropout, swin, mixer, gmlp, convmixer, perceiver, detr, masked_autoencoder,
)  # fmt: skip
