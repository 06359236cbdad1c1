"""No record meets another worker's: while functions of the user's run, nobody talks.

A collective inside a loss function (a contrastive loss that gathers from all workers, a metric)
would let a record of one worker change another's gradient.  Under `torch.vmap` it has no meaning,
and where records are computed one at a time it would run.

Guarantee: within `silence` every call of a process group raises, by whatever name it was imported.
Operators of `torch.ops` that talk are refused by the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import torch.distributed as dist

from psac.errors import PrivacyError

CALLS = (
    *("all_gather_single", "all_to_all_single", "allgather", "allgather_coalesced"),
    *("allgather_into_tensor_coalesced", "allreduce", "allreduce_coalesced", "alltoall"),
    *("alltoall_base", "barrier", "broadcast", "gather", "monitored_barrier", "recv"),
    *("recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_tensor_coalesced"),
    *("scatter", "send", "_allgather_base", "_reduce_scatter_base", "reduce_scatter_single"),
)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """In here process groups are out of reach."""
    kind: Any = dist.ProcessGroup
    before = {name: vars(kind)[name] for name in CALLS if name in vars(kind)}
    for name in before:
        setattr(kind, name, refuse)
    try:
        yield
    finally:
        for name, call in before.items():
            setattr(kind, name, call)


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise PrivacyError(
        "the loss function talks to other workers (torch.distributed): a record there could change "
        "this one's gradient. Leave the collective out; psac adds up the sums of all workers "
        "itself. What is the same for all records, exchange before private.step."
    )
