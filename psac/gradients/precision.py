"""In which precision norms and sums are taken: float32 at least.

What one sample adds to a sum before its noise may be rounded in any way, as long as the norm is
that of what was rounded.  The sum itself must not be: in bfloat16 two numbers around 3000 are 16
apart, so that one more sample would move a rounded sum by sixteen times its bound, or not at all.
So sums are kept in `summed_in`, noise is added to that, and what is released is rounded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
DEVICES = ("cpu", "cuda", "mps", "xpu")
Function = TypeVar("Function", bound=Callable[..., Any])


def wide(tensor: Tensor) -> Tensor:
    """float32 at least: norms and sums of half-precision values are taken in float32."""
    return tensor.float() if tensor.dtype in HALF else tensor


def in_double(tensor: Tensor) -> Tensor:
    """float64, of complex numbers the pairs of real ones."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the sum over samples of gradients of this one."""
    return torch.promote_types(dtype, torch.float32)


def as_autocast(*tensors: Tensor | None) -> list[Any]:
    """Operands of a matrix product or convolution, as autocast would cast them."""
    if not torch._C._is_any_autocast_enabled():
        return list(tensors)
    (device,) = {t.device.type for t in tensors if t is not None}
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    plain = (torch.float32, *HALF)
    return [t.to(dtype) if t is not None and t.dtype in plain else t for t in tensors]


def without_autocast(function: Function) -> Function:
    """The user may be within autocast, which would take matrix products of ours in half."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return function(*args, **kwargs)
        enabled = [device for device in DEVICES if torch.is_autocast_enabled(device)]
        with contextlib.ExitStack() as stack:
            for device in enabled:
                stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def pieces(values: Tensor, dims: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """Values of few digits that add up to the given ones times a factor, a power of two.

    An operation in half precision that only moves entries moves these without rounding: three
    times 8 digits are the 24 of float32, and below 2^15 they are numbers of float16 too. There is
    one factor for all entries along `dims`.
    """
    largest = values.abs().amax(tuple(dims), keepdim=True)
    exponent = torch.frexp(largest).exponent.clamp(min=-100)
    factor = torch.ldexp(torch.ones_like(largest), 15 - exponent)
    rest, parts = values * factor, []
    for _ in range(3):
        parts.append(rest.bfloat16().to(rest.dtype))
        rest = rest - parts[-1]
    return parts, factor
