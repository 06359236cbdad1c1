"""Train with a scale that adapts to the gradients: `python examples/adaptive_scale.py`.

The formula of PSAC is meant for gradient norms of about 1.  Here the loss has a small unit, so the
norms are a thousand times smaller and contributions drown in the noise.  `AdaptivePSAC` moves its
scale to the median norm.  In each step it releases a noisy count of the norms below the scale, and
the same budget pays for this count.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import psac

UNIT = 1e-3  # for example, a mean over a thousand pixels instead of a sum


def circles(count: int) -> TensorDataset:
    """Points, labelled by whether they lie outside a circle."""
    points = torch.randn(count, 2)
    return TensorDataset(points, (points.norm(dim=1) > 1.2).long())


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return UNIT * F.cross_entropy(model(x), y)


def train(rule: psac.PSAC | psac.AdaptivePSAC) -> None:
    torch.manual_seed(0)  # for data and initial weights; the noise has its own generator
    data, test = circles(10_000), circles(2_000)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    print(rule)
    with psac.make_private(
        model, optimizer, data, batch_size=250, epochs=4, epsilon=3.0, delta=1e-6, clipping=rule
    ) as private:
        for epoch in range(4):
            for batch in private.loader:
                private.step(loss, batch)
            x, y = test.tensors
            with torch.no_grad():
                accuracy = (model(x).argmax(1) == y).float().mean()
            print(f"  epoch {epoch + 1}: accuracy {accuracy:.1%}, scale {private.scale:.2g}")
        print(f"  epsilon {private.epsilon():.3f}")


def main() -> None:
    train(psac.PSAC())
    train(psac.AdaptivePSAC())


if __name__ == "__main__":
    main()
