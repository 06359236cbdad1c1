"""Complete runs from recipes: `train(load_recipe("fashion-mnist-cnn"), "runs/first")`.

recipe         all settings of a run; shipped, overrides
splits         the records to train on and to evaluate on; own_data, in_memory
assembly       model, optimizer and private run; own_model, optimization
trainer        the loop; many runs several of them at once; workers, several processes for one
run            a run on disk; metrics, results, released_columns, privacy_warnings, environment
evaluation     losses and accuracy; prediction, for new records
search         the settings that a sweep tries
"""

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
