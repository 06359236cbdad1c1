"""Train your own model privately: `python examples/train_privately.py`.

A small network learns to separate two moons with (epsilon, delta) = (2, 1e-5).  Three things differ
from ordinary training: you call `make_private`, batches come from `private.loader`, and the loss is
a function that you pass to `private.step`, which runs the backward pass and the optimizer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import psac


def moons(count: int) -> TensorDataset:
    """Points on two interleaved half circles, with noise."""
    labels = torch.arange(count) % 2
    angle = torch.rand(count) * torch.pi
    x = torch.where(labels == 0, angle.cos(), 1 - angle.cos())
    y = torch.where(labels == 0, angle.sin(), 0.5 - angle.sin())
    return TensorDataset(torch.stack([x, y], 1) + 0.1 * torch.randn(count, 2), labels)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of one record: x has shape [1, 2] and y has shape [1]."""
    return F.cross_entropy(model(x), y)


def main() -> None:
    torch.manual_seed(0)  # for data and initial weights; the noise has its own generator
    train, test = moons(20_000), moons(2_000)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    epochs = 4

    with psac.make_private(
        model, optimizer, train, batch_size=512, epochs=epochs, epsilon=2.0, delta=1e-5
    ) as private:
        print(private)
        for epoch in range(epochs):
            for batch in private.loader:
                private.step(loss, batch)
            with torch.no_grad():
                x, y = test.tensors
                accuracy = (model(x).argmax(1) == y).float().mean()
            print(f"epoch {epoch + 1}: accuracy {accuracy:.1%}, epsilon {private.epsilon():.3f}")
        print(private.ledger)


if __name__ == "__main__":
    main()
