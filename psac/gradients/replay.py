"""Whether what a forward wrote depends on its samples: found by running it again.

The forward is repeated from the state that it found, without randomness: on a few of its samples,
on the same with other values, and on one sample alone. A parameter or buffer that does not come out
the same each time holds what was computed from samples. So may an attribute, if the next forward
forgets it: two models that differ in nothing but what they saw before must then give the same
outputs and end in the same state.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from . import samples as trees
from .places import Address, Place, places_of, same, standing, version
from .samples import Batch
from .sandbox import Quiet

MOST = 16
State = dict[Address, Any]
FAILS = " (the forward fails on other samples, so that nothing else can be shown)"
ONCE = " (it is written once and never again, so that nothing else can be shown)"
_FAILURES = (Exception,)  # a user's forward may fail in any way on samples that are not its own


class Replayed(NamedTuple):
    state: State  # as the forward left it
    outputs: list[Tensor]
    written: set[Address]


class Replay:
    """A forward that can be repeated: `run(tree)` from the state `found`."""

    def __init__(self, model: nn.Module, found: State, run: Callable[[Any], Any]):
        self.model, self.found, self.run = model, found, run

    def __call__(self, tree: Any, state: State | None = None) -> Replayed:
        with undisturbed(self.model), standing(self.model, state or self.found), Quiet():
            before = {p.address: (p.store[p.key], version(p.store[p.key])) for p in self._places()}
            output = self.run(trees.map_tensors(tree, detached))
            after = {p.address: p.store[p.key] for p in self._places()}
            written = {
                address
                for address, value in after.items()
                if address not in before
                or value is not before[address][0]
                or version(value) != before[address][1]
            }
        return Replayed(after, trees.tensors(output), written)

    def _places(self) -> list[Place]:
        return places_of(self.model)

    def forgets(self, first: State, second: State, tree: Any) -> bool:
        """Whether a forward from either state is the same in all that it does."""
        try:
            one, another = self(tree, first), self(tree, second)
        except _FAILURES:
            return False
        return same(one.outputs, another.outputs) and not differing(one.state, another.state)


def judge(
    replay: Replay, changed: Sequence[Place], after: Mapping[Address, Any], tree: Any, dim: int
) -> tuple[Place, str] | None:
    """The place that holds what was computed from samples, and why; None if there is none.

    `changed` are the places that the forward wrote, `after` what it left there.
    """
    few = few_of(tree, num_samples(tree, dim), dim)
    try:
        own, _, written = replay(few)
    except _FAILURES:
        return changed[0], FAILS
    places = {place.address: place for place in [*changed, *places_of(replay.model)]}
    runs = list(other_states(replay, own, few, dim))
    if not runs:
        return changed[0], FAILS
    for state in runs:
        found = [places.get(address, changed[0]) for address in differing(own, state)]
        lasting = [place for place in found if place.kind != "attribute"]
        if lasting or (found and not replay.forgets(own, state, few)):
            return (lasting or found)[0], ""
    for place in changed:
        left = own.get(place.address)
        if place.address in written or same(left, after.get(place.address)):
            continue
        if same(left, replay.found.get(place.address)):
            return place, ONCE
    return None


def few_of(tree: Any, n: int, dim: int) -> Any:
    """At most MOST of the samples."""
    if n <= MOST:
        return tree
    return next((batch.take(range(MOST)) for batch in readings(tree, n, dim)), tree)


def readings(tree: Any, n: int, dim: int) -> Iterator[Batch]:
    return (batch for batch in Batch.readings(tree, n) if batch.axes[0] in (None, dim))


def other_states(replay: Replay, own: State, tree: Any, dim: int) -> Iterator[State]:
    """What the forward leaves after other samples; nothing if it can run on no others."""
    yield from after_other_values(replay, tree)
    n, found = num_samples(tree, dim), []
    for batch in readings(tree, n, dim) if n > 1 else ():
        with contextlib.suppress(*_FAILURES):
            found.append(replay(batch.take([n - 1])).state)
            if not differing(own, found[-1]):  # by this reading the number does not matter
                found = found[-1:]
                break
    yield from found[:1]


def after_other_values(replay: Replay, tree: Any) -> Iterator[State]:
    """All inputs exchanged; where the model does not take that, one kind of number at a time."""
    with contextlib.suppress(*_FAILURES):
        yield replay(exchanged(tree, lambda leaf: True)).state
        return
    kinds = {leaf.is_floating_point() for leaf in trees.tensors(tree)}
    states: list[State] = []
    for kind in kinds:
        try:
            other = exchanged(tree, lambda leaf, k=kind: leaf.is_floating_point() is k)
            states.append(replay(other).state)
        except _FAILURES:
            return
    yield from states


def differing(first: State, second: State) -> list[Address]:
    missing = object()
    return [
        address
        for address in [*first, *(a for a in second if a not in first)]
        if not same(first.get(address, missing), second.get(address, missing))
        or (address in first) != (address in second)
    ]


def num_samples(tree: Any, dim: int) -> int:
    for leaf in trees.leaves(tree):
        if isinstance(leaf, PackedSequence):
            return int(leaf.batch_sizes[0])
        if leaf.dim() > dim:
            return leaf.shape[dim]
    return 0


def exchanged(tree: Any, chosen: Callable[[Tensor], bool]) -> Any:
    """Other values in the same shapes: numbers are moved, whole numbers taken from their own."""

    def exchange(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return leaf._replace(data=exchange(leaf.data))
        return other_values(leaf) if chosen(leaf) and leaf.numel() else leaf

    return trees.map_tensors(tree, exchange)


def other_values(tensor: Tensor) -> Tensor:
    values = tensor.detach()
    if tensor.is_floating_point() or tensor.is_complex():
        generator = torch.Generator().manual_seed(0)
        moves = torch.rand(tensor.shape, generator=generator).to(values)
        return (0.75 * values + 0.2 * moves).requires_grad_(tensor.requires_grad)
    if tensor.dtype is torch.bool:
        return ~values
    least = values.min()
    if bool((values != least).any()):
        return torch.full_like(values, int(least))
    return torch.full_like(values, 0 if int(least) else 1)


def detached(leaf: Any) -> Any:
    """An input that is free of the graph of the forward proper."""
    if isinstance(leaf, PackedSequence):
        return leaf._replace(data=detached(leaf.data))
    free = leaf.detach().clone()
    if not leaf.requires_grad:
        return free
    with torch.enable_grad():
        return free.requires_grad_().view_as(free)


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """All random generators are put back afterwards."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
