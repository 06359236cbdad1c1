"""What may be trained privately at all.

The trainable parameters of a model, and modules that cannot be private.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .errors import NotIsolated, PrivacyError

# The engine that is attached to a model, so that plain functions can ask it to be silent.
attached: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def silenced(model: nn.Module) -> Iterator[None]:
    """The model's engine, if it has one, does nothing in here."""
    engine = attached.get(model)
    before = engine is not None and engine.silent
    if engine is not None:
        engine.silent = True
    try:
        yield
    finally:
        if engine is not None:
            engine.silent = before


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter, for those that require a gradient; a tied parameter has its first name."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise PrivacyError(
            f"{type(model).__name__} has no parameter with requires_grad=True, "
            "so there is nothing to train."
        )
    return found


def refuse_modules(model: nn.Module) -> None:
    """Raises for modules that cannot be private.

    Batch norm that takes its statistics from the batch, and embeddings that rescale their table.
    """
    for path, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise PrivacyError(
                f"{type(module).__name__} with max_norm at '{path}' rescales the rows that its "
                "samples look up, outside any gradient: which rows changed tells who was in the "
                "batch. Use max_norm=None."
            )
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise NotIsolated(
                f"{type(module).__name__} at '{path}' mixes samples, so a sample's gradient is not "
                "its own. Replace it with GroupNorm, or put it in eval() mode to use its stored "
                "statistics."
            )
