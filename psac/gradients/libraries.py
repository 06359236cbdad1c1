"""What other libraries do that vmap cannot, done otherwise while a function runs under vmap.

Nothing of it stays: when the call is over, each library is as it was.

- `torch.utils.checkpoint` saves memory by hooks on saved tensors, which see all records.  Blocks run
  without it: same results, and the memory of a model without checkpoints.
- `torch.compile` does not trace under a function mode: compiled code runs as it was written.
- `transformers` leaves out attention masks that mask nothing, which is a branch on values.  Masks
  are always made.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint as checkpoints


@contextlib.contextmanager
def without_branches() -> Iterator[None]:
    """All of it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_checkpoints())
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if "transformers.masking_utils" in sys.modules:
            stack.enter_context(with_all_masks())
        yield


class PlainFunction:
    """In the place of torch's CheckpointFunction."""

    @staticmethod
    def apply(function: Callable, preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def plain_generator(*_: Any, **__: Any) -> Iterator[None]:
    """In the place of what surrounds a block whose checkpoint is not re-entrant."""
    yield


@contextlib.contextmanager
def without_checkpoints() -> Iterator[None]:
    names = {
        "CheckpointFunction": PlainFunction,
        "_checkpoint_without_reentrant_generator": plain_generator,
    }
    before = {name: getattr(checkpoints, name) for name in names}
    try:
        for name, value in names.items():
            setattr(checkpoints, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(checkpoints, name, value)


@contextlib.contextmanager
def with_all_masks() -> Iterator[None]:
    masks = sys.modules["transformers.masking_utils"].AttentionMaskInterface
    mapping = masks._global_mapping
    before = dict(mapping)
    try:
        for name in ("sdpa", "eager"):
            masks.register(name, without_skips(before[name]))
        yield
    finally:
        mapping.clear()
        mapping.update(before)


@functools.cache
def without_skips(make_mask: Callable) -> Callable:
    """The same masks, made also where they mask nothing."""

    @functools.wraps(make_mask)
    def whole(*args: Any, **kwargs: Any) -> Any:
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return make_mask(*args, **{**kwargs, **skips})

    return whole
