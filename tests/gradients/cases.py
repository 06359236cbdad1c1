"""The table of models that the engine must get right: every layer family of `torch.nn`, and more.

A row is a name and a function that builds a model, a batch and a loss function of one record, and
says how psac evaluates it (table.py). Rows live in `models/`, one file a family.
"""

from __future__ import annotations

from tests.gradients.models import (  # noqa: F401  # each adds its rows
    activations,
    attention,
    calls,
    convolutions,
    embeddings,
    linear,
    losses,
    norms,
    parameters,
    parametrizations,
    products,
    recurrent,
    selections,
    unusual,
    values,
)
from tests.gradients.table import CASES, Case

__all__ = ["CASES", "Case"]
