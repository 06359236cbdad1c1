"""What may be trained privately at all: the trainable parameters of a model, and modules that cannot be private."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .errors import NotIsolated, PrivacyError


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter, for those that require a gradient; a tied parameter has its first name."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise PrivacyError(
            f"{type(model).__name__} has no parameter with requires_grad=True, so there is nothing to train."
        )
    return found


def refuse_batch_norm(model: nn.Module) -> None:
    """Raises for batch norm that takes its statistics from the batch."""
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise NotIsolated(
                f"{type(module).__name__} at '{path}' mixes samples, so a sample's gradient is not its own. "
                "Replace it with GroupNorm, or put it in eval() mode to use its stored statistics."
            )
