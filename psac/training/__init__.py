"""A whole run from a recipe: `train(load_recipe("fashion-mnist-cnn"), "runs/first")`."""

from psac.training.recipe import Recipe
from psac.training.shipped import load_recipe, shipped
from psac.training.run import Run, RunError
from psac.training.observer import Observer
from psac.training.interruption import Interrupted
from psac.training.trainer import train
from psac.training.many import Job, Outcome, train_many

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
