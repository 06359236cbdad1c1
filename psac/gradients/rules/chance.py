"""Random numbers that vmap does not draw as ordinary code would.

- A number without axes, such as LayerDrop's `torch.rand([])`, is drawn once for all records.
  Ordinary code draws it once for the batch, and may branch on it.  It depends on no record.
- A number with axes of length one (`torch.rand(1) < 0.5`) is each record's own, unless the function
  asks for its value, to branch on it: then it is drawn once, too.
- Numbers like a tensor of parameters (`torch.randn_like(weight)`, dropout of a weight) are drawn
  once, as ordinary code draws them for the batch: the weight stays one that all records share.
- Draws whose odds are a record's own (`torch.bernoulli(p)`) cannot be the same for all records
  under vmap.  The self-check compares with what plain torch draws, so there each record draws by
  itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from psac.gradients.errors import PACKAGES
from psac.gradients.rules.physical import are_records, physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder

Place = tuple[CodeType, int]  # a line of code
FUNCTIONS: Any = torch._C._VariableFunctions  # type: ignore[attr-defined]


class NeedsSharing(Exception):
    """Internal: the function must run again, with one number for all records drawn there."""

    def __init__(self, place: Place) -> None:
        super().__init__(f"{place[0].co_filename}, line {place[1]}")
        self.place = place


def number(draw: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of torch.rand, torch.randn and torch.randint."""

    def rule(rec: Recorder, *args: Any, **settings: Any) -> Any:
        size = size_of(args, settings)
        if size is None or any(length != 1 for length in size):
            return NotImplemented
        place = place_of_caller() if size else None
        if place is not None and place not in rec.shared_draws:
            value = draw(*args, **settings)
            rec.watch.made(value)
            rec.draws[id(value)] = value, place
            return value
        with physically():
            value = draw(*args, **settings)
        rec.watch.made(value)
        return value

    return rule


def like(draw: Callable[..., Tensor]) -> Callable[..., Any]:
    """The rule of torch.randn_like and the like."""

    def rule(rec: Recorder, input: Tensor, *args: Any, **settings: Any) -> Any:
        if any(are_records(input)) or not input.requires_grad or not rec.serves(input):
            return NotImplemented
        with physically():
            value = draw(input, *args, **settings)
        rec.watch.made(value)
        return value

    return rule


def size_of(args: tuple, settings: Mapping[str, Any]) -> Sequence[int] | None:
    """The shape that is asked for: (2, 3), 2, 3, or size=(2, 3); None for anything else."""
    if "size" in settings:
        return settings["size"]
    if args and isinstance(args[-1], (tuple, list)):
        return args[-1]
    return args if all(isinstance(length, int) for length in args) else None


def place_of_caller() -> Place:
    """The line of code that draws, of the user or of a library."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGES):
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def place_of_draw(target: Tensor | None, error: Exception) -> Place | None:
    """Where one number is drawn into a tensor that records share, if that is what vmap refused."""
    if target is None or target.numel() != 1 or "inplace randomness" not in str(error):
        return None
    return place_of_caller()


def by_odds(draw: Callable[..., Tensor]) -> Callable[..., Any]:
    """The rule of torch.bernoulli and the like, for the self-check."""

    def rule(rec: Recorder, *given: Any, **settings: Any) -> Any:
        tensors = [value for value in given if isinstance(value, Tensor)]
        if rec.randomness != "same" or not any(are_records(*tensors)) or not rec.serves(*tensors):
            return NotImplemented
        odds = [rec.for_each(t, "odds") if isinstance(t, Tensor) else t for t in given]
        with physically():
            odds = [rec.physical(t) if isinstance(t, Tensor) else t for t in odds]
            values, before = [], torch.default_generator.get_state()
            for k in range(rec.num_samples):
                torch.default_generator.set_state(before)
                values.append(
                    draw(*(t[k] if isinstance(t, Tensor) else t for t in odds), **settings)
                )
            return rec.of_records(torch.stack(values))

    return rule


rand, randn, randint = number(torch.rand), number(torch.randn), number(torch.randint)
rand_like, randn_like = like(torch.rand_like), like(torch.randn_like)
randint_like, dropout = like(torch.randint_like), like(torch.nn.functional.dropout)
standard_gamma, dirichlet = by_odds(FUNCTIONS._standard_gamma), by_odds(FUNCTIONS._sample_dirichlet)
binomial = by_odds(torch.binomial)
bernoulli, normal = by_odds(torch.bernoulli), by_odds(torch.normal)
multinomial, poisson = by_odds(torch.multinomial), by_odds(torch.poisson)
