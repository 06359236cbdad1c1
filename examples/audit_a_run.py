"""What can an attacker show?  `python examples/audit_a_run.py`.

First the library: thousands of canaries in one step of this installation.  Then runs of your own:
records with random labels, each in the data by the toss of a coin, and an attacker who sees the
trained model and guesses who was in.  What the guesses prove is a lower bound on epsilon, which
must stay below what the ledger promises.  Ordinary training promises nothing, and it shows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import psac
from psac.auditing import Canaries

FEATURES, DELTA = 2_000, 1e-5


def trained(data: object, epsilon: float | None) -> tuple[nn.Module, float]:
    """A linear model, and what its training promises; without an epsilon it is ordinary."""
    model = nn.Linear(FEATURES, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader, private = DataLoader(data, batch_size=200, shuffle=True), None  # type: ignore[arg-type]
    if epsilon is not None:
        plan = {"batch_size": 200, "epochs": 10, "epsilon": epsilon, "delta": DELTA}
        private = psac.make_private(model, optimizer, data, **plan)
        loader = private.loader
    for _ in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model, private.epsilon() if private else float("inf")


def main() -> None:
    print(psac.audit())
    torch.manual_seed(0)
    inputs = torch.randn(1_000, FEATURES)
    honest = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    strange = TensorDataset(torch.randn(500, FEATURES), torch.randint(2, (500,)))
    for epsilon in (3.0, None):
        canaries = Canaries(honest, strange)
        model, promised = trained(canaries.dataset, epsilon)
        x, y = strange.tensors
        with torch.no_grad():
            scores = -F.cross_entropy(model(x), y, reduction="none")
        print(f"{'private' if epsilon else 'ordinary'} training promises epsilon {promised:.3f}")
        print(f"  shown {canaries.lower_bound(scores, delta=DELTA)}")


if __name__ == "__main__":
    main()
