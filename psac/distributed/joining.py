"""Which processes train this run together."""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch
import torch.distributed as dist

from psac.distributed.group import Alone, Group
from psac.errors import PrivacyError

# By the user's group; runs that follow each other share one.
controls: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def join(process_group: Any = None) -> Group:
    """The workers of `process_group`, by default of all that `torch.distributed` knows.

    Raises:
        PrivacyError: The process was started as one of several, and `torch.distributed` is not
            initialised: each would train alone, on all records, and count its own steps only.
        ValueError: `process_group` does not have this process.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if process_group is not None:
            raise ValueError(
                "process_group was given, but torch.distributed is not initialised: call "
                "torch.distributed.init_process_group() before make_private."
            )
        refuse_forgotten_group()
        return Alone()
    group = process_group if process_group is not None else dist.group.WORLD
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            "process_group does not have this process. Call make_private on its members alone."
        )
    if dist.get_world_size(group) == 1:
        return Alone()
    from psac.distributed.workers import Workers

    return Workers(group, control_of(group))


def refuse_forgotten_group() -> None:
    started = os.environ.get("WORLD_SIZE", "1")
    if started.isdigit() and int(started) > 1 and "RANK" in os.environ:
        raise PrivacyError(
            f"this is one of {started} processes (WORLD_SIZE, as torchrun sets it), but "
            "torch.distributed is not initialised: each would train a model of its own on all "
            "records, and the ledger of each would know nothing of the others. Call "
            "torch.distributed.init_process_group() first. For independent runs, unset WORLD_SIZE."
        )


def control_of(group: Any) -> Any:
    """A gloo group of the same processes: for keys, agreement, and sums on the CPU.

    It is ours alone, so that no exchange of the user's is taken for one of a run.
    """
    if group not in controls:
        controls[group] = dist.new_group(
            dist.get_process_group_ranks(group),
            timeout=timeout_of(group),
            backend="gloo",
            use_local_synchronization=True,
        )
    return controls[group]


def timeout_of(group: Any) -> Any:
    """How long its collectives wait; None, torch's default, if it does not tell."""
    for kind in ("cuda", "cpu"):
        try:
            return group._get_backend(torch.device(kind)).options._timeout  # pyright: ignore
        except (RuntimeError, AttributeError):
            continue
    return None
