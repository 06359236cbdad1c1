"""A whole run from a recipe: `train(load_recipe("fashion-mnist-cnn"), "runs/first")`."""

from psac.app.training.recipe import Recipe
from psac.app.training.shipped import load_recipe, shipped
from psac.app.training.run import Run, RunError
from psac.app.training.observer import Observer
from psac.app.training.interruption import Interrupted
from psac.app.training.trainer import train
from psac.app.training.many import Job, Outcome, train_many

__all__ = [
    "Recipe",
    "load_recipe",
    "shipped",
    "Run",
    "RunError",
    "Observer",
    "Interrupted",
    "train",
    "Job",
    "Outcome",
    "train_many",
]
