"""Networks of dense layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from .batches import Case, classes, cross_entropy, dense, numbers, squared_error


def logistic_regression() -> Case:
    """Logistic regression, 784 inputs"""
    return nn.Linear(784, 10), cross_entropy, (numbers(784), classes(10))


def mlp() -> Case:
    """MLP 784-512-512-10"""
    return dense(784, 512, 512, 10), cross_entropy, (numbers(784), classes(10))


def wide_mlp() -> Case:
    """MLP 784-2048-2048-10, without biases"""
    layers = [nn.Linear(784, 2048, bias=False), nn.ReLU(), nn.Linear(2048, 2048, bias=False)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(2048, 10, bias=False))
    return model, cross_entropy, (numbers(784), classes(10))


def mlp_dropout() -> Case:
    """MLP with dropout in every layer"""
    layers = [nn.Dropout(0.2), nn.Linear(784, 512), nn.GELU(), nn.Dropout(0.5)]
    model = nn.Sequential(
        *layers, nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.5), nn.Linear(512, 10)
    )
    return model, cross_entropy, (numbers(784), classes(10))


def selu_mlp() -> Case:
    """Self-normalizing MLP (SELU, alpha dropout)"""
    block = [nn.Linear(256, 256), nn.SELU(), nn.AlphaDropout(0.05)]
    model = nn.Sequential(nn.Linear(64, 256), nn.SELU(), *block, *block, nn.Linear(256, 2))
    return model, cross_entropy, (numbers(64), classes(2))


class ResidualMLP(nn.Module):
    def __init__(self, width: int = 256, depth: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(inplace=True))
            for _ in range(depth)
        )
        self.scales = nn.ParameterList(torch.full((width,), 0.5) for _ in range(depth))
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = x + scale * block(x)
        return self.last(x)


def residual_mlp() -> Case:
    """Residual MLP, layer norm, layer scale"""
    return ResidualMLP(), cross_entropy, (numbers(64), classes(10))


def prelu_mlp() -> Case:
    """MLP with PReLU for each channel"""
    model = nn.Sequential(
        nn.Linear(128, 256), nn.PReLU(256), nn.Linear(256, 256), nn.PReLU(), nn.Linear(256, 10)
    )
    return model, cross_entropy, (numbers(128), classes(10))


class Highway(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * F.relu(self.body(x)) + (1 - gate) * x


def highway() -> Case:
    """Highway network"""
    model = nn.Sequential(*(Highway(256) for _ in range(4)), nn.Linear(256, 10))
    return model, cross_entropy, (numbers(256), classes(10))


class Maxout(nn.Module):
    def __init__(self, inputs: int, outputs: int, pieces: int) -> None:
        super().__init__()
        self.linear, self.pieces = nn.Linear(inputs, outputs * pieces), pieces

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).unflatten(-1, (-1, self.pieces)).amax(-1)


def maxout() -> Case:
    """Maxout network"""
    model = nn.Sequential(Maxout(128, 128, 4), Maxout(128, 128, 4), nn.Linear(128, 10))
    return model, cross_entropy, (numbers(128), classes(10))


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(64, 32), nn.Linear(64, 32)
        self.mix = nn.Bilinear(32, 32, 48)
        self.last = nn.Linear(48, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.last(torch.tanh(self.mix(self.left(x), self.right(z))))


def bilinear() -> Case:
    """Two inputs met by nn.Bilinear"""

    def loss(model: nn.Module, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x, z), y)

    return Bilinear(), loss, (numbers(64), numbers(64), classes(3))


def weight_norm() -> Case:
    """MLP with weight normalization"""
    wrap = parametrizations.weight_norm
    model = nn.Sequential(
        wrap(nn.Linear(784, 512)), nn.ReLU(), wrap(nn.Linear(512, 512)), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip
    return model, cross_entropy, (numbers(784), classes(10))


def spectral_norm() -> Case:
    """Spectral normalization, in eval mode"""
    wrap = parametrizations.spectral_norm
    model = nn.Sequential(
        wrap(nn.Linear(784, 512)), nn.ReLU(), wrap(nn.Linear(512, 512)), nn.ReLU(),
        nn.Linear(512, 10),
    ).eval()  # fmt: skip
    return model, cross_entropy, (numbers(784), classes(10))


def orthogonal() -> Case:
    """A layer that is kept orthogonal (parametrization)"""
    model = nn.Sequential(
        nn.Linear(256, 256),
        nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(256, 256)),
        nn.Linear(256, 10),
    )
    return model, cross_entropy, (numbers(256), classes(10))


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30 * x)


def siren() -> Case:
    """SIREN: a field of 256 points in each record"""
    model = dense(2, 128, 128, 128, 3, activation=Sine)
    return model, squared_error, (numbers(256, 2), numbers(256, 3))


class RadianceField(nn.Module):
    def __init__(self, frequencies: int = 6, width: int = 128) -> None:
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(frequencies) * math.pi)
        encoded = 3 + 6 * frequencies
        self.trunk = dense(encoded, width, width, width)
        self.density = nn.Linear(width, 1)
        self.colour = nn.Sequential(
            nn.Linear(width + 3, width // 2), nn.ReLU(), nn.Linear(width // 2, 3)
        )

    def forward(self, points: Tensor, direction: Tensor) -> Tensor:
        angles = (points.unsqueeze(-1) * self.bands).flatten(-2)
        hidden = F.relu(self.trunk(torch.cat([points, angles.sin(), angles.cos()], -1)))
        seen = torch.cat([hidden, direction.unsqueeze(-2).expand_as(points)], -1)
        colour, density = self.colour(seen).sigmoid(), F.softplus(self.density(hidden)).squeeze(-1)
        alpha = 1 - torch.exp(-density / points.shape[-2])
        through = torch.cumprod(1 - alpha + 1e-10, -1).roll(1, -1)
        return ((alpha * through).unsqueeze(-1) * colour).sum(-2)


def nerf() -> Case:
    """NeRF: rays of 32 points"""

    def loss(model: nn.Module, points: Tensor, direction: Tensor, colour: Tensor) -> Tensor:
        return F.mse_loss(model(points, direction), colour)

    return RadianceField(), loss, (numbers(32, 3), numbers(3), torch.rand(16, 3))


class Hypernetwork(nn.Module):
    """One network writes the weights of another, anew for each record."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.writer = dense(8, 64, 4 * width + width * 2)

    def forward(self, task: Tensor, x: Tensor) -> Tensor:
        first, second = self.writer(task).split([4 * self.width, self.width * 2], -1)
        hidden = torch.bmm(x, first.view(-1, 4, self.width)).relu()
        return torch.bmm(hidden, second.view(-1, self.width, 2))


def hypernetwork() -> Case:
    """Hypernetwork, 20 points for each record"""

    def loss(model: nn.Module, task: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(model(task, x), y)

    return Hypernetwork(), loss, (numbers(8), numbers(20, 4), numbers(20, 2))


class Splines(nn.Module):
    """A layer of Kolmogorov-Arnold networks, with Gaussian bumps."""

    def __init__(self, inputs: int, outputs: int, bumps: int = 8) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(-2, 2, bumps))
        self.weights = nn.Parameter(torch.randn(inputs, bumps, outputs) / math.sqrt(inputs * bumps))
        self.base = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        bumps = torch.exp(-((x.unsqueeze(-1) - self.centres) ** 2))
        return self.base(F.silu(x)) + torch.einsum("bik,iko->bo", bumps, self.weights)


def kan() -> Case:
    """Kolmogorov-Arnold network"""
    return (
        nn.Sequential(Splines(32, 64), Splines(64, 10)),
        cross_entropy,
        (numbers(32), classes(10)),
    )


class NeuralODE(nn.Module):
    def __init__(self, width: int = 64, steps: int = 6) -> None:
        super().__init__()
        self.field, self.steps = dense(width, 128, width, activation=nn.Tanh), steps
        self.last = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = 1 / self.steps
        for _ in range(self.steps):
            first = self.field(x)
            second = self.field(x + h / 2 * first)
            third = self.field(x + h / 2 * second)
            fourth = self.field(x + h * third)
            x = x + h / 6 * (first + 2 * second + 2 * third + fourth)
        return self.last(x)


def neural_ode() -> Case:
    """Neural ODE, 6 steps of Runge-Kutta"""
    return NeuralODE(), cross_entropy, (numbers(64), classes(2))


MODELS = (
    logistic_regression, mlp, wide_mlp, mlp_dropout, selu_mlp, residual_mlp, prelu_mlp, highway,
    maxout, bilinear, weight_norm, spectral_norm, orthogonal, siren, nerf, hypernetwork, kan,
    neural_ode,
)  # fmt: skip
