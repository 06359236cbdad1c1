"""A random number without axes, such as LayerDrop's `torch.rand([])`, is drawn once for all records.

Ordinary code draws it once for the batch, and may branch on it.  It depends on no record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .physical import physically

if TYPE_CHECKING:
    from ..recorder import Recorder


def number(draw: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of torch.rand or torch.randn."""

    def rule(rec: Recorder, *size: Any, **settings: Any) -> Any:
        given = settings.pop("size", size[0] if len(size) == 1 else size)
        if not isinstance(given, (list, tuple)) or len(given) > 0 or len(size) > 1:
            return NotImplemented
        with physically():
            value = draw((), **settings)
        rec.watch.made(value)
        return value

    return rule


rand, randn = number(torch.rand), number(torch.randn)
