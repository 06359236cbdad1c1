"""What may be trained privately at all.

The trainable parameters of a model, and modules that cannot be private.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from psac.gradients.errors import NotIsolated, PrivacyError

SUSPECTS = (_BatchNorm, nn.Embedding, nn.EmbeddingBag)
OF_ALL_MODULES: Any = torch.nn.modules.module

# The private run that has each model, so that no two train the same parameters.
attached: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


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


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Each module once, as `model.modules()` gives them, in less time."""
    found, seen, stack = [], set(), [model]
    while stack:
        module = stack.pop()
        if module not in seen:
            seen.add(module)
            found.append(module)
            stack += [m for m in reversed(module._modules.values()) if m is not None]
    return found


def survey(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> set[int]:
    """The ids of the model's tensors; raises for what cannot be private, before every call.

    Batch norm that takes its statistics from the batch, embeddings that rescale their table, and
    hooks on the backward, which per-sample gradients do not pass.
    """
    known: set[int] = set()
    suspect = bool(
        OF_ALL_MODULES._global_backward_hooks or OF_ALL_MODULES._global_backward_pre_hooks
    )
    for module in modules_of(model):
        known.update(map(id, module._parameters.values()))
        known.update(map(id, module._buffers.values()))
        if module._backward_hooks or module._backward_pre_hooks or isinstance(module, SUSPECTS):
            suspect = True
    for parameter in parameters.values():
        if parameter._backward_hooks or len(parameter._post_accumulate_grad_hooks or ()) > 1:
            suspect = True
    if suspect:
        refuse_modules(model)
        refuse_hooks(model, parameters)
    return known


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


def refuse_hooks(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raises for hooks on the backward, which per-sample gradients do not pass."""
    hooked = [
        f"module '{path}'"
        for path, module in model.named_modules()
        if module._backward_hooks or module._backward_pre_hooks
    ]
    for name, parameter in parameters.items():
        if parameter._backward_hooks or len(parameter._post_accumulate_grad_hooks or ()) > 1:
            hooked.append(f"parameter '{name}'")
    if OF_ALL_MODULES._global_backward_hooks or OF_ALL_MODULES._global_backward_pre_hooks:
        hooked.append("all modules")
    if hooked:
        raise PrivacyError(
            f"there are backward hooks on {', '.join(hooked[:5])}: per-sample gradients do not "
            "pass them, so training would silently be another. Remove them; what a hook does to "
            "gradients belongs into the loss function or into the clipping rule."
        )


def attach(model: nn.Module, parameters: Mapping[str, nn.Parameter], owner: Any) -> None:
    """`owner` trains these parameters privately, and nobody else does."""
    for other in list(attached.values()):
        theirs = {id(p) for p in other.parameters.values()}
        shared = [name for name, p in parameters.items() if id(p) in theirs]
        if shared:
            raise PrivacyError(
                f"{type(model).__name__} shares the parameters {shared[:5]} with another private "
                "run that is open: they would be clipped twice, and noisy twice. Make one private "
                "run of the whole model (rules for its parts: clipping={'0.*': ..., '*': ...}), "
                "or close the other one first."
            )
    attached[model] = owner
