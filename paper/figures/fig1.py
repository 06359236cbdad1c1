"""Figure 1: small gradients point elsewhere, on MNIST."""

from __future__ import annotations

from paper.figures.cosine_by_norm import Task, exhibit
from psac.app.training.shipped import load_recipe

TASKS = [
    Task(
        name="mnist",
        title="MNIST, CNN",
        recipe=load_recipe("mnist-cnn", rule="abadi", r=None, epochs=10, seed=1),
        every=25,
    )
]
FIG1 = exhibit("fig1", "Figure 1. Cosine to the batch mean by norm, MNIST", TASKS)
