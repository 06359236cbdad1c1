"""Writing where a mask says so: `scores[mask] = -inf`; and what torch writes wrongly under vmap.

vmap does not index by a mask, because records would have different numbers of places.  Nothing of
that is seen if what is written has one value for all places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from psac.gradients.rules.physical import are_records

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder


def setitem_of_one_value(rec: Recorder, tensor: Tensor, index: Any, value: Any) -> Any:
    """`tensor[index] = value` with one mask in the index, and slices and numbers beside it."""
    given = index if isinstance(index, tuple) else (index,)
    masks = [k for k, part in enumerate(given) if isinstance(part, Tensor)]
    if len(masks) != 1 or not is_mask(given[masks[0]]):
        return NotImplemented
    (place,), mask = masks, given[masks[0]]
    beside = (*given[:place], *given[place + 1 :])
    if not all(part is Ellipsis or isinstance(part, (slice, int)) for part in beside):
        return NotImplemented
    if isinstance(value, Tensor) and not any(are_records(tensor, mask, value)):
        return NotImplemented
    if any(part is Ellipsis for part in given[place + 1 :]):
        return NotImplemented
    with rec:
        whole = (*given[:place], *[slice(None)] * mask.dim(), *given[place + 1 :])
        view = tensor[whole] if len(whole) > mask.dim() else tensor
        behind = sum(isinstance(part, slice) for part in given[place + 1 :])
        rest = rest_of(tensor, given, mask, place) + behind
        if isinstance(value, Tensor) and value.dim() > rest:
            return NotImplemented  # a value for each place
        mask = mask.view(*mask.shape, *[1] * rest)
        if isinstance(value, Tensor):
            view.copy_(torch.where(mask, value.to(view.dtype), view))
        else:
            view.masked_fill_(mask, value)
    return None


def setitem_of_places(rec: Recorder, tensor: Tensor, index: Any, value: Any) -> Any:
    """`tensor[:, places] = value`: behind a slice, torch's batching rule turns the axes around."""
    given = index if isinstance(index, tuple) else (index,)
    of_records = [isinstance(part, Tensor) and are_records(part) == [True] for part in given]
    if not any(of_records) or isinstance(given[0], Tensor) or not rec.serves(tensor):
        return NotImplemented
    with rec:
        numbers = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
        places = numbers[index]
        value = torch.as_tensor(value, device=tensor.device).to(tensor.dtype)
        surplus = max(0, value.dim() - places.dim())
        tensor.put_(places, value.flatten(0, surplus).expand(places.shape))
    return None


def select_scatter(rec: Recorder, input: Tensor, src: Tensor, dim: int, index: int) -> Any:
    """torch's batching rule gives `input` the gradients of the places that are written over."""
    if not any(are_records(input, src)):
        return NotImplemented
    with rec:
        places, axes = torch.arange(input.shape[dim], device=input.device), [1] * input.dim()
        axes[dim] = -1
        is_written = (places == index % len(places)).view(axes)
        return torch.where(is_written, src.unsqueeze(dim), input)


def scatter_(rec: Recorder, input: Tensor, dim: int, index: Tensor, src: Any, **others: Any) -> Any:
    """torch has a batching rule for `scatter` alone, and would call this one record by record."""
    if others or not any(are_records(input, index)):
        return NotImplemented
    with rec:
        return input.copy_(torch.scatter(input, dim, index, src))


def clamp_(rec: Recorder, input: Tensor, *bounds: Any, **named: Any) -> Any:
    """Of whole numbers: torch would call it record by record."""
    if input.is_floating_point() or not any(are_records(input)):
        return NotImplemented
    with rec:
        return input.copy_(torch.clamp(input, *bounds, **named))


def masked_fill(rec: Recorder, input: Tensor, mask: Tensor, value: Any) -> Any:
    """With a tensor as the value, too."""
    if not isinstance(value, Tensor) or not any(are_records(input, mask, value)):
        return NotImplemented
    with rec:
        return torch.where(mask, value.to(input.dtype), input)


def is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8) and index.dim() > 0 and any(are_records(index))


def rest_of(tensor: Tensor, given: tuple, mask: Tensor, place: int) -> int:
    """How many axes come behind all that is indexed."""
    if any(part is Ellipsis for part in given[:place]):
        return 0
    return tensor.dim() - mask.dim() - (len(given) - 1)
