"""Tensors that the function makes and then writes a record's values into.

    out = torch.zeros(5, 3)          # the same for all records, so that vmap keeps one of them
    out[:, 0] = model(x)             # a record's values: from here on, each record has its own

Under plain vmap the second line raises.  Here the tensor becomes a tensor of records at that line,
and so does every view of it: the Python objects stay, what they stand for is exchanged.  The same
holds for numbers that are drawn into it (`torch.empty(5).normal_()`) and for `requires_grad_()`.

Guarantee: never a tensor from outside of the call, whose memory others can read.  Values of a
record go into new memory with a copy for each record; whatever of it outlives the call is refused
as any other tensor of a record (watch.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]

from psac.gradients.isolation.watch import is_wrapped
from psac.gradients.rules.physical import physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder

# How vmap says that a tensor which all records share cannot be written to.
SIGNS = (
    "(self, *extra_args) is not possible because there exists a Tensor",
    "different inplace randomness on an unbatched tensor",
    "doesn't match the broadcast shape",
)


def is_refused_write(error: RuntimeError) -> bool:
    return any(sign in str(error) for sign in SIGNS)


def becomes_of_records(rec: Recorder, tensor: Tensor) -> bool:
    """Gives each record a copy of a tensor that was made in this call, seen by all its views.

    False if there is no such tensor.
    """
    if is_wrapped(tensor) or _functorch.maybe_current_level() != rec.level:
        return False
    views = rec.watch.views_of(tensor)
    if not any(view is tensor for view in views):
        return False
    if any(view.dtype != tensor.dtype or id(view) in rec.sources for view in views):
        return False
    memory = whole_memory(tensor, views)
    if memory is None:
        return False
    trained = memory.requires_grad and torch.is_grad_enabled()
    copies = rec.copies(memory, "written") if trained else rec.for_each(memory, "written")
    with physically():
        rows = rec.physical(copies).clone(memory_format=torch.contiguous_format)
        for view in views:
            exchange(rec, view, rows)
    return True


def whole_memory(tensor: Tensor, views: list[Tensor]) -> Tensor | None:
    """All of the memory behind a tensor, in one row."""
    size = tensor.untyped_storage().nbytes() // tensor.itemsize
    if any(view.requires_grad for view in views):
        base = tensor if tensor._base is None else tensor._base
        if not base.is_contiguous() or base.numel() != size or base.is_leaf:
            return None
        return base.flatten()
    with physically():
        return tensor.detach().as_strided((size,), (1,), 0)


def exchange(rec: Recorder, view: Tensor, rows: Tensor) -> None:
    """`view` now stands for the same places of `rows`, [record, memory]."""
    if view.numel() == rows.shape[1] and view.is_contiguous():
        value = rows.view(len(rows), *view.shape)
    else:
        sizes, strides = (len(rows), *view.shape), (rows.shape[1], *view.stride())
        value = rows.as_strided(sizes, strides, view.storage_offset())
    wrapped = rec.of_records(value)
    torch._C._swap_tensor_impl(view, wrapped)  # type: ignore[attr-defined]
    rec.watch.keep(view)
