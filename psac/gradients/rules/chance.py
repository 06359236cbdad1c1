"""Random numbers that vmap does not draw as ordinary code would.

- A number without axes, such as LayerDrop's `torch.rand([])`, is drawn once for all records.
  Ordinary code draws it once for the batch, and may branch on it.  It depends on no record.
- Draws whose odds are a record's own (`torch.bernoulli(p)`) cannot be the same for all records
  under vmap.  The self-check compares with what plain torch draws, so there each record draws by
  itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .physical import are_records, physically

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


def by_odds(draw: Callable[..., Tensor]) -> Callable[..., Any]:
    """The rule of torch.bernoulli and the like, for the self-check."""

    def rule(rec: Recorder, *given: Any, **settings: Any) -> Any:
        tensors = [value for value in given if isinstance(value, Tensor)]
        if rec.randomness != "same" or not any(are_records(*tensors)) or not rec.serves(*tensors):
            return NotImplemented
        odds = [rec.for_each(t.detach(), "odds") if isinstance(t, Tensor) else t for t in given]
        with physically():
            odds = [rec.physical(t) if isinstance(t, Tensor) else t for t in odds]
            values, before = [], torch.get_rng_state()
            for k in range(rec.num_samples):
                torch.set_rng_state(before)
                values.append(
                    draw(*(t[k] if isinstance(t, Tensor) else t for t in odds), **settings)
                )
            return rec.of_records(torch.stack(values))

    return rule


rand, randn = number(torch.rand), number(torch.randn)
bernoulli, normal = by_odds(torch.bernoulli), by_odds(torch.normal)
multinomial, poisson = by_odds(torch.multinomial), by_odds(torch.poisson)
