"""Layouts in memory (channels_last), of which vmap knows nothing: its tensors have one axis more.

They are asked for and made with the records folded into the batch axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from psac.gradients.rules.physical import are_records, physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder

OF_CHANNELS = (torch.channels_last, torch.channels_last_3d)


def laid_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a function of a tensor that takes a `memory_format`."""

    def rule(rec: Recorder, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("memory_format") not in OF_CHANNELS:
            return NotImplemented
        if are_records(tensor) == [False] or not rec.serves(tensor):
            return NotImplemented
        with physically():
            result = function(rec.physical(tensor).flatten(0, 1), *args, **kwargs)
            if not isinstance(result, Tensor):
                return result
            return rec.of_records(result.unflatten(0, (rec.num_samples, -1)))

    return rule


contiguous, is_contiguous = laid_out(Tensor.contiguous), laid_out(Tensor.is_contiguous)
to, clone = laid_out(Tensor.to), laid_out(torch.clone)
empty_like, zeros_like = laid_out(torch.empty_like), laid_out(torch.zeros_like)
