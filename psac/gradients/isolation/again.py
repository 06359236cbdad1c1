"""Records computed once more, in another order: do they remember what no walk over objects reaches?

A file, another thread, an object of a library: whatever plain Python between two records or two
paths remembers shows in the result of the second.  A test, not a guarantee: it is made where a
function is new, and at secret steps.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from psac.gradients.errors import PrivacyError
from psac.gradients.isolation.outside import code_of

SECRET_STEPS = 16  # one of so many is computed twice, though its function is known
# Allowed relative differences between two passes, in units of the rounding of one number.
OF_LOSSES, OF_GRADIENTS = 256, 512

Result = tuple[Tensor, Mapping[str, Tensor]]  # losses, and gradients or their norms


class Again:
    """Which functions were computed twice, in so many paths."""

    def __init__(self) -> None:
        self._known: set[Any] = set()

    def is_due(self, loss: Any, paths: int = 0) -> bool:
        return (code_of(loss), paths) not in self._known or not secrets.randbelow(SECRET_STEPS)

    def passed(self, loss: Any, paths: int = 0) -> None:
        self._known.add((code_of(loss), paths))


def shuffled(n: int) -> list[int]:
    """What remembers for good shows only where it is met after a record that it does not touch."""
    order = list(range(n))
    secrets.SystemRandom().shuffle(order)
    return order


def refuse_other_result(which: str, first: Result, second: Result) -> None:
    """The same records, computed twice, among others in another order."""
    (losses, grads), (again, grads_again) = first, second
    rounding = torch.finfo(losses.dtype).eps
    is_same = torch.allclose(losses, again, rtol=OF_LOSSES * rounding, atol=0, equal_nan=True)
    for name in grads.keys() | grads_again.keys():
        was, now = grads.get(name), grads_again.get(name)
        if was is None or now is None:
            is_same = False
        elif bool(was.isfinite().all()):
            rounding = OF_GRADIENTS * torch.finfo(was.dtype).eps
            is_same = is_same and bool((now - was).norm() <= rounding * was.norm())
    if not is_same:
        refuse_order(which)


def refuse_order(which: str) -> NoReturn:
    raise PrivacyError(
        f"the loss or the gradient of {which} was another one when it was computed "
        "again, after other records than before. The function remembers records where psac "
        "does not see it (a file, another thread, a library), or draws random numbers that "
        "follow from no generator of torch, numpy or Python. Leave nothing of a record behind, "
        "and draw from those generators."
    )
