"""What may be trained privately at all.

The trainable parameters of a model, and modules that cannot be private.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

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
    shapeless = [name for name, p in found.items() if is_lazy(p)]
    if shapeless:
        raise PrivacyError(
            f"{', '.join(shapeless)}: lazy parameters that have no shape yet. Run the model once, "
            "on zeros for example, and build the optimizer after that."
        )
    return found


def refuse_scripted(model: nn.Module) -> None:
    """A scripted model takes no hooks; as a part of another one it does not need any."""
    scripted = torch.jit.RecursiveScriptModule  # type: ignore[attr-defined]
    if isinstance(model, scripted):  # a traced one takes them
        raise PrivacyError(
            f"{model.original_name} was compiled by torch.jit.script, which takes no hooks. "
            "Put it into a module: torch.nn.Sequential(model)."
        )


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


def refuse_shared(engine: Any) -> None:
    """Raises if another engine has parameters of this one: a model, and a part of it."""
    for other in list(attached.values()):
        shared = [name for number, name in engine.names.items() if number in other.names]
        if shared:
            raise PrivacyError(
                f"{type(engine.model).__name__} shares the parameters {shared[:5]} with "
                f"{type(other.model).__name__}, which has an engine already: their gradients would "
                "be clipped twice, and noisy twice. Make one private run of the whole model (rules "
                "for its parts: clipping={'0.*': ..., '*': ...}), or close the other one first."
            )
