"""Models and loss functions as people bring them: what psac does with each, and what it costs.

    model, loss, batch = MODELS["unet"].build()

Each is innocent: it has the records on the first axis of its batch, and mixes none.  A model is a
function without arguments in the file of its family: its docstring is its title, and it returns
(model, loss, batch of 16 records).  To add one: write the function and put it in the MODELS of
its file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import (
    attention,
    convolutions,
    decisions,
    generative,
    graphs,
    habits,
    huggingface,
    losses,
    patches,
    perceptrons,
    pictures,
    precision,
    recurrent,
    structured,
    tabular,
    techniques,
    views,
)
from .batches import RECORDS, Case

__all__ = ["FAMILIES", "MODELS", "RECORDS", "Case", "Entry"]

FAMILIES = {
    "Dense networks": perceptrons,
    "Convolutional networks": convolutions,
    "Pictures and places": pictures,
    "Attention": attention,
    "Patches": patches,
    "Recurrence and scans": recurrent,
    "Structured outputs": structured,
    "Tables and recommendations": tabular,
    "Generative models": generative,
    "Views, teachers, tasks": views,
    "Graphs and sets": graphs,
    "Losses": losses,
    "Decisions": decisions,
    "Techniques": techniques,
    "Precision": precision,
    "Habits": habits,
    "Hugging Face": huggingface,
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of the table."""

    name: str
    title: str
    family: str
    function: Callable[[], Case]

    def build(self, *, seed: int = 0) -> Case:
        """The same seed gives the same weights and records."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.function()


MODELS = {
    function.__name__: Entry(
        name=function.__name__,
        title=(function.__doc__ or "").strip().rstrip("."),
        family=family,
        function=function,
    )
    for family, module in FAMILIES.items()
    for function in module.MODELS
}
