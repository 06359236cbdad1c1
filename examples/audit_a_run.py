"""Attack the library and your own runs: `python examples/audit_a_run.py`.

`psac.audit()` attacks one step of this installation with thousands of canaries.  `Canaries` attacks
a run of your own: it adds records with random labels, each with probability one half, and an
attacker who sees the trained model guesses which ones were in.  The guesses prove a lower bound on
epsilon, which must stay below the epsilon of the ledger.  Ordinary training has no such limit.
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
    """Trains privately and returns the epsilon that the ledger promises."""
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
