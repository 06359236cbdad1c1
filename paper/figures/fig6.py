"""Figure 6: small gradients point elsewhere, on Fashion-MNIST and on features of CIFAR-10."""

from __future__ import annotations

from paper.figures.cosine_by_norm import Task, exhibit
from psac.app.training.recipe import Recipe
from psac.app.training.shipped import load_recipe

FEATURES = "cifar10-features"  # of EfficientNet-Lite0, where the paper has SimCLRv2
TASKS = [
    Task(
        name="fashion-mnist",
        title="Fashion-MNIST, CNN",
        recipe=load_recipe("fashion-mnist-cnn", rule="abadi", r=None, epochs=10, seed=1),
        every=10,
    ),
    Task(
        name=FEATURES,
        title="CIFAR-10 features, linear",
        recipe=Recipe(
            data=FEATURES,
            model="linear",
            rule="abadi",
            bound=0.1,
            epsilon=2.0,
            delta=1e-5,
            batch_size=1024,
            epochs=10,
            learning_rate=4.0,
            momentum=0.9,
            seed=1,
        ),
        every=20,
    ),
]
FIG6 = exhibit("fig6", "Figure 6. Cosine to the batch mean by norm, further data", TASKS)
