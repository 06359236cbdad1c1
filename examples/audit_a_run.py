"""What can an attacker show?  `python examples/audit_a_run.py`.

First the library: thousands of canaries in one step of this installation.  Then runs of your own:
records with random labels, each in the data by the toss of a coin, and an attacker who sees the
trained model and guesses who was in.  What the guesses prove is a lower bound on epsilon, which
must stay below what the ledger promises.  Ordinary training promises nothing, and it shows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import psac
from psac.auditing import Canaries

FEATURES, EPOCHS, DELTA = 2_000, 10, 1e-5


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def privately(model: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset) -> float:
    """Returns what its training promises."""
    plan = {"batch_size": 200, "epochs": EPOCHS, "epsilon": 3.0, "delta": DELTA}
    with psac.make_private(model, optimizer, data, **plan) as private:
        for _ in range(EPOCHS):
            for batch in private.loader:
                private.step(loss, batch)
        return private.epsilon()


def ordinarily(model: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset) -> float:
    for _ in range(EPOCHS):
        for x, y in DataLoader(data, batch_size=200, shuffle=True):
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
    return float("inf")


def main() -> None:
    print(psac.audit())
    torch.manual_seed(0)
    inputs = torch.randn(1_000, FEATURES)
    honest = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    x, y = torch.randn(500, FEATURES), torch.randint(2, (500,))
    for train in (privately, ordinarily):
        canaries, model = Canaries(honest, TensorDataset(x, y)), nn.Linear(FEATURES, 2)
        promised = train(model, torch.optim.SGD(model.parameters(), lr=0.5), canaries.dataset)
        print(f"trained {train.__name__}, promised epsilon {promised:.3f}")
        scores = -F.cross_entropy(model(x), y, reduction="none").detach()
        print(f"  shown {canaries.lower_bound(scores, delta=DELTA)}")


if __name__ == "__main__":
    main()
