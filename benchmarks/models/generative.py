"""Autoencoders, flows, diffusion, adversaries."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

from .batches import Case, dense, numbers, reconstruction
from .convolutions import conv, head, normed


def autoencoder() -> Case:
    """Autoencoder, dense"""
    return dense(784, 256, 32, 256, 784), reconstruction, (numbers(784),)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(0.03 * torch.randn(128, 784)),
            nn.Parameter(torch.zeros(784)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.sigmoid(F.linear(x, self.weight)), self.weight.t(), self.bias)


def tied_autoencoder() -> Case:
    """Autoencoder with tied weights"""
    return Tied(), reconstruction, (numbers(784),)


def conv_autoencoder() -> Case:
    """Autoencoder with transposed convolutions"""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1),
    )  # fmt: skip
    return model, reconstruction, (numbers(1, 28, 28),)


class VAE(nn.Module):
    def __init__(self, latent: int = 16) -> None:
        super().__init__()
        self.encoder, self.decoder = dense(784, 256, 2 * latent), dense(latent, 256, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        latent = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(latent), mean, log_variance


def vae() -> Case:
    """VAE"""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        logits, mean, log_variance = model(x)
        gap = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x) + gap

    return VAE(), loss, (torch.rand(16, 784),)


def vae_distributions() -> Case:
    """VAE by torch.distributions"""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        mean, log_std = model.encoder(x).chunk(2, -1)
        posterior = Normal(mean, log_std.exp(), validate_args=False)
        logits = model.decoder(posterior.rsample())
        gap = kl_divergence(posterior, Normal(0.0, 1.0)).sum(-1)
        return (gap - Normal(logits, 1.0, validate_args=False).log_prob(x).sum(-1)).mean()

    return VAE(), loss, (numbers(784),)


class VQVAE(nn.Module):
    def __init__(self, codes: int = 64, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 32, 4, 4), nn.ReLU(), nn.Conv2d(32, width, 1))
        self.codes = nn.Embedding(codes, width)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(width, 32, 4, 4), nn.ReLU(), conv(32, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(x).permute(0, 2, 3, 1)
        distances = torch.cdist(hidden.flatten(1, 2), self.codes.weight.expand(len(x), -1, -1))
        nearest = self.codes(distances.argmin(-1)).view_as(hidden)
        gap = F.mse_loss(nearest, hidden.detach()) + 0.25 * F.mse_loss(hidden, nearest.detach())
        straight = hidden + (nearest - hidden).detach()
        return self.decoder(straight.permute(0, 3, 1, 2)), gap


def vqvae() -> Case:
    """VQ-VAE (nearest code, straight through)"""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out, gap = model(x)
        return F.mse_loss(out, x) + gap

    return VQVAE(), loss, (numbers(1, 28, 28),)


class Coupling(nn.Module):
    def __init__(self, width: int, flip: bool) -> None:
        super().__init__()
        self.net, self.flip = dense(width // 2, 64, width), flip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = (x.flip(-1) if self.flip else x).chunk(2, -1)
        log_scale, shift = self.net(left).chunk(2, -1)
        log_scale = torch.tanh(log_scale)
        return torch.cat([left, right * log_scale.exp() + shift], -1), log_scale.sum(-1)


def realnvp() -> Case:
    """RealNVP (affine couplings)"""
    model = nn.ModuleList(Coupling(16, bool(k % 2)) for k in range(4))

    def loss(model: nn.ModuleList, x: Tensor) -> Tensor:
        volume = torch.zeros(len(x))
        for layer in model:
            x, change = layer(x)
            volume = volume + change
        likelihood = -0.5 * (x**2 + math.log(2 * math.pi)).sum(-1) + volume
        return -likelihood.mean()

    return model, loss, (numbers(16),)


class Glow(nn.Module):
    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.zeros(1, channels, 1, 1)) for _ in range(2))
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels)).Q)
        self.net = nn.Sequential(conv(channels // 2, 32), nn.ReLU(), conv(32, channels))

    def forward(self, x: Tensor) -> Tensor:
        """The negative log likelihood."""
        x = F.pixel_unshuffle(x, 2)
        x = (x + self.shift) * self.scale.exp()
        x = F.conv2d(x, self.mix[..., None, None])
        left, right = x.chunk(2, 1)
        log_scale, shift = self.net(left).chunk(2, 1)
        log_scale = torch.tanh(log_scale)
        x = torch.cat([left, right * log_scale.exp() + shift], 1)
        places = x.shape[-1] * x.shape[-2]
        volume = places * (self.scale.sum() + torch.linalg.slogdet(self.mix).logabsdet)
        return (0.5 * x**2).sum((1, 2, 3)).mean() - log_scale.sum((1, 2, 3)).mean() - volume


def glow() -> Case:
    """Glow (actnorm, 1x1 convolution, slogdet)"""
    return Glow(), lambda model, x: model(x), (numbers(3, 16, 16),)


class NoiseModel(nn.Module):
    """A small U-Net that is told the time."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.enter, self.down = conv(1, width), normed(width, 2 * width, 3, 2)
        self.up, self.leave = nn.ConvTranspose2d(2 * width, width, 2, 2), conv(2 * width, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * 1000 ** (-torch.arange(16) / 16)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None]
        first = F.silu(self.enter(x) + time)
        return self.leave(torch.cat([self.up(self.down(first)), first], 1))


def diffusion() -> Case:
    """Diffusion: U-Net, random time and noise"""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        t = torch.randint(0, 1000, (len(x),))
        kept = torch.cos(t / 1000 * math.pi / 2)[:, None, None, None]
        noise = torch.randn_like(x)
        noisy = kept * x + (1 - kept**2).sqrt() * noise
        return F.mse_loss(model(noisy, t.float()), noise)

    return NoiseModel(), loss, (numbers(1, 28, 28),)


def flow_matching() -> Case:
    """Flow matching"""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        t, noise = torch.rand(len(x), 1), torch.randn_like(x)
        return F.mse_loss(model(torch.cat([(1 - t) * noise + t * x, t], -1)), x - noise)

    return dense(33, 256, 256, 32, activation=nn.SiLU), loss, (numbers(32),)


def discriminator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(16, 32, 4, 2, 1),
        nn.LeakyReLU(0.2, inplace=True), head(32, 1),
    )  # fmt: skip


def gan_discriminator() -> Case:
    """GAN: a discriminator and pictures of a frozen generator"""
    generator = nn.Sequential(nn.Linear(8, 784), nn.Tanh()).requires_grad_(False)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        fake = generator(torch.randn(len(x), 8)).view_as(x)
        return F.softplus(-model(x)).mean() + F.softplus(model(fake)).mean()

    return discriminator(), loss, (numbers(1, 28, 28),)


def gradient_penalty() -> Case:
    """WGAN with a gradient penalty (double backward)"""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        fake = torch.randn_like(x).requires_grad_()
        score = model(fake)
        (slope,) = torch.autograd.grad(score.sum(), fake, create_graph=True)
        return (
            score.mean() - model(x).mean() + 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()
        )

    return discriminator(), loss, (numbers(1, 28, 28),)


class MaskedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones_like(self.weight)
        mask[:, :, self.kernel_size[0] // 2, self.kernel_size[1] // 2 :] = 0
        mask[:, :, self.kernel_size[0] // 2 + 1 :] = 0
        return F.conv2d(x, self.weight * mask, self.bias, padding=self.padding)


def pixelcnn() -> Case:
    """PixelCNN (masked convolutions)"""
    model = nn.Sequential(
        MaskedConv(1, 32, 7, padding=3),
        nn.ReLU(),
        nn.Conv2d(32, 32, 1),
        nn.ReLU(),
        nn.Conv2d(32, 16, 1),
    )

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), (x.squeeze(1).sigmoid() * 15.99).long())

    return model, loss, (numbers(1, 28, 28),)


def mixture_density() -> Case:
    """Mixture density network (torch.distributions)"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        share, mean, log_std = model(x).unflatten(-1, (3, 5, 2)).unbind(1)
        parts = Independent(
            Normal(mean, log_std.exp(), validate_args=False), 1, validate_args=False
        )
        mixture = MixtureSameFamily(Categorical(logits=share[..., 0]), parts, validate_args=False)
        return -mixture.log_prob(y).mean()

    return dense(8, 128, 30, activation=nn.Tanh), loss, (numbers(8), numbers(2))


MODELS = (
    autoencoder, tied_autoencoder, conv_autoencoder, vae, vae_distributions, vqvae, realnvp, glow,
    diffusion, flow_matching, gan_discriminator, gradient_penalty, pixelcnn, mixture_density,
)  # fmt: skip
