"""More rows of the table of models: networks that no rule was written for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.table import rows


class ShiftedWindows(nn.Module):
    """Attention within windows, which stand beside the samples, with a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(2, 8, 2, stride=2), nn.LayerNorm(8)
        self.projection, self.table = nn.Linear(8, 24), nn.Parameter(torch.randn(7, 2))
        self.register_buffer("places", torch.arange(16).view(4, 4) % 7)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.roll(self.patches(x).permute(0, 2, 3, 1), (-1, -1), (1, 2))
        n, height, width, k = x.shape
        windows = x.view(n, height // 2, 2, width // 2, 2, k).transpose(2, 3).reshape(-1, 4, k)
        q, key, v = self.projection(self.norm(windows)).view(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ key.transpose(-1, -2) + self.table[self.places].permute(2, 0, 1)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, -1, k).mean(1)


class Spectral(nn.Module):
    """A product with complex weights, of Fourier coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.parts = nn.Conv1d(1, 3, 1), nn.Parameter(torch.randn(3, 3, 4, 2))

    def forward(self, x: Tensor) -> Tensor:
        coefficients = torch.fft.rfft(self.lift(x))[..., :4]
        mixed = torch.einsum("bik,iok->bok", coefficients, torch.view_as_complex(self.parts))
        return torch.fft.irfft(mixed, n=x.shape[-1])


class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place, self.features = nn.Linear(36, 6), nn.Conv2d(1, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        moves = 0.1 * self.place(x.flatten(1)).view(-1, 2, 3) + torch.eye(2, 3, dtype=x.dtype)
        grid = F.affine_grid(moves, list(x.shape), align_corners=False)
        return self.features(F.grid_sample(x, grid, align_corners=False)).mean((2, 3))


class Hypernetwork(nn.Module):
    """The weights of each sample's own layer are computed from the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.bias = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(self.weights(x).view(-1, 3, 4), x.unsqueeze(2)).squeeze(2) + self.bias(x)


class StateSpace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay, self.past = nn.Parameter(torch.rand(4, 6)), nn.Parameter(torch.ones(4))
        self.enter, self.leave = nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        enter, leave, state, out = self.enter(x), self.leave(x), 0.0, []
        for t in range(x.shape[1]):
            new = x[:, t].unsqueeze(-1) * enter[:, t].unsqueeze(1)
            state = state * torch.exp(-self.decay) + new
            out.append((state * leave[:, t].unsqueeze(1)).sum(-1) + self.past * x[:, t])
        return torch.stack(out, 1)


class Latents(nn.Module):
    """Learned queries look at the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(5, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, kdim=4, vdim=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.queries.expand(len(x), -1, -1), x, x, need_weights=False)[0]


class LocallyConnected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, 4, 9))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bkl,kol->bol", F.unfold(x, 3), self.weight)


class Modulated(nn.Module):
    """Channels are scaled and moved by what another branch says."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.norm = nn.Conv2d(1, 4, 3, bias=False), nn.GroupNorm(2, 4)
        self.modulation = nn.Linear(25, 8)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.modulation(x.flatten(1)).view(-1, 8, 1, 1).chunk(2, 1)
        return (self.norm(self.features(x)) * scale + shift).relu()


class Solved(nn.Module):
    """The output solves a system that the network sets up."""

    def __init__(self) -> None:
        super().__init__()
        self.system = nn.Linear(4, 9)

    def forward(self, x: Tensor) -> Tensor:
        root = self.system(x).view(-1, 3, 3)
        matrix = root @ root.transpose(1, 2) + torch.eye(3, dtype=x.dtype)
        return torch.linalg.solve(matrix, x[:, :3, None]).squeeze(-1)


class Splines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.coefficients = nn.Parameter(torch.randn(4, 3, 7))
        self.register_buffer("knots", torch.linspace(-2, 2, 7))

    def forward(self, x: Tensor) -> Tensor:
        near = torch.exp(-((x.unsqueeze(-1) - self.knots) ** 2))
        return torch.einsum("big,iog->bo", near, self.coefficients)


class Prototypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.prototypes = nn.Linear(4, 3), nn.Parameter(torch.randn(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(self.layer(x), self.prototypes)


rows("shifted_windows", ShiftedWindows, (5, 2, 8, 8))
rows("fourier_layer", Spectral, (5, 1, 16))
rows("spatial_transformer", SpatialTransformer, (5, 1, 6, 6))
rows("hypernetwork", Hypernetwork, (5, 4))
rows("state_space", StateSpace, (5, 6, 4))
rows("latents", Latents, (5, 7, 4))
rows("locally_connected", LocallyConnected, (4, 1, 5, 5))
rows("modulated", Modulated, (4, 1, 5, 5))
rows("solved_system", Solved, (5, 4))
rows("splines", Splines, (5, 4))
rows("prototypes", Prototypes, (5, 4))
