"""What a forward leaves behind in its model: nothing may stay that was computed from samples.

A model is released with its parameters and buffers, and what a forward reads back enters later
gradients. `Watch` therefore looks at parameters, buffers and attributes of all modules before and
after every forward, with gradients or without, however few the samples. What changed is judged by
running the forward again (replay.py). Allowed is what comes out the same whatever the samples are
(counters, spectral norm's iterations, caches of positions and masks, random draws), and attributes
that the next forward forgets (a map of attention, kept to look at). Else `PrivacyError` is raised,
and what was written is put back.

Cost: every forward compares identities and version counters. Values are compared, which finds
writes through `.data`, at forwards 1, 2, 4, 8, ... of each mode (training or not, gradients or
not); what changes in every forward is judged again then. Not seen: a write through `.data` that
happens once at another forward, and what is kept in objects of the user's own or outside modules.
What the user's loop writes between forwards cannot be judged; it is announced while a private batch
is out.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from .errors import PrivacyError, announce_written
from .places import (
    CONTAINERS,
    Address,
    Place,
    copied,
    elements,
    places_of,
    same,
    stores_of,
    version,
    versions,
)
from .replay import Replay, judge, num_samples

_LONG = 64  # of longer containers only the length is looked at
_MISSING = object()


class Watch:
    """Looks at a model before and after each forward."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.steady: set[str] = set()  # names of what changes and was shown to be harmless
        self._counts: dict[tuple[bool, bool], int] = {}
        self._open = self._nested = self._due = self._warned = False
        self._survey()

    def _survey(self) -> None:
        """Lists the places anew."""
        self._stores = stores_of(self.model)
        self._size = sum(map(len, self._stores))
        places = places_of(self.model)
        self._all = {place.address for place in places}
        self._places = [place for place in places if place.kind != "parameter"]
        self._parameters = [
            place
            for place in places
            if place.kind == "parameter" and place.store[place.key] is not None
        ]
        self._weights = [place.store[place.key] for place in self._parameters]
        keys: dict[int, tuple[Any, list[str]]] = {}
        for place in self._places:
            keys.setdefault(id(place.store), (place.store, []))[1].append(place.key)
        # Twice the last key: of one key alone there would be no tuple.
        self._getters = [(itemgetter(*names, names[-1]), store) for store, names in keys.values()]
        self._remember()

    # What it remembers
    def _remember(self) -> None:
        """The present values, and what tensors hold that are not known to change."""
        old = dict(getattr(self, "_contents", {}))
        known = getattr(self, "_versions", {})
        self._values, self._seen = self._read(), self._glance()
        self._containers = [
            (value, copy.copy(value) if len(value) <= _LONG else len(value))
            for value in self._values
            if type(value) in CONTAINERS
        ]
        self._tensors: list[Tensor] = []
        self._contents: dict[int, Tensor] = {}  # id(tensor) -> a copy
        self._versions: dict[int, tuple[Tensor, int]] = {}
        for place, value in zip(self._places, self._values, strict=True):
            for tensor in tensors_in(value):
                number = version(tensor)
                self._tensors.append(tensor)
                self._versions[id(tensor)] = tensor, number
                if known.get(id(tensor), (None, None))[1] == number and id(tensor) in old:
                    self._contents[id(tensor)] = old[id(tensor)]
                elif place.name not in self.steady:
                    self._contents[id(tensor)] = tensor.detach().clone()
        self._numbers = versions(self._tensors)

    def _read(self) -> list[Any]:
        try:
            return [store[key] for store, key, _, _ in self._places]
        except KeyError:
            return [stored(place) for place in self._places]

    def _glance(self) -> list[Any]:
        """The values as fast as can be, to be compared with those of another glance."""
        return [get(store) for get, store in self._getters]

    def _is_as_it_was(self) -> bool:
        try:  # equal objects are not looked at; tensors that differ cannot say whether they do
            is_seen = self._glance() == self._seen
        except Exception:  # noqa: BLE001 - or an object of the user's own cannot, or is gone
            return False
        return (
            is_seen
            and sum(map(len, self._stores)) == self._size
            and versions(self._tensors) == self._numbers
            and all(not is_changed(value, before) for value, before in self._containers)
        )

    def look(self) -> None:
        """Changes are counted from here on."""
        if not self._is_as_it_was():
            self._again()

    def _again(self) -> None:
        is_listed = all(value is not _MISSING for value in self._read())
        if is_listed and sum(map(len, self._stores)) == self._size:
            self._remember()
        else:
            self._survey()

    def _written(self) -> list[Place]:
        """Buffers and attributes that are not as they were."""
        if self._is_as_it_was():
            return []
        changed = {id(tensor) for tensor, n in self._versions.values() if version(tensor) != n}
        changed |= {id(value) for value, before in self._containers if is_changed(value, before)}
        found = [
            place
            for place, now, before in zip(self._places, self._read(), self._values, strict=True)
            if now is not before
            or id(now) in changed
            or any(id(tensor) in changed for tensor in tensors_in(now))
        ]
        return found + [p for p in places_of(self.model) if p.address not in self._all]

    def notice(self) -> None:
        """Announces, once, tensors that were written outside of any forward."""
        if self._warned or self._is_as_it_was():
            return
        values = [(p, p.store[p.key]) for p in self._written() if p.key in p.store]
        names = [
            place.name
            for place, value in values
            if isinstance(value, Tensor) and value.numel() > 1 and place.name not in self.steady
        ]
        if names:
            self._warned = True
            announce_written(self.model, names)

    # Around a forward
    def before(self, is_private: bool) -> None:
        """`is_private`: a private batch is out, so that what changed since is announced."""
        if self._open and self._calls() > 1:
            self._nested = True
            return
        self._open, self._nested = True, False
        if not self._is_as_it_was():
            if is_private:
                self.notice()
            self._again()
        mode = (self.model.training, torch.is_grad_enabled())
        count = self._counts[mode] = self._counts.get(mode, 0) + 1
        self._due = count & (count - 1) == 0
        if self._due:
            self._contents = {}  # a write through `.data` since then is the user's own
            self._survey()
            for tensor in (*self._tensors, *self._weights):
                self._contents.setdefault(id(tensor), tensor.detach().clone())
        self._weight_numbers = versions(self._weights)

    def after(self, tree: Any, run: Callable[[Any], Any], batch_dim: int) -> None:
        """Raises if the forward left what it computed from the samples of `tree`."""
        if self._nested and self._calls() > 1:
            return
        self._open = False
        changed = self._written()
        if versions(self._weights) != self._weight_numbers or self._due:
            changed += self._written_weights()
        if self._due:
            changed += self._written_unseen({place.address for place in changed})
        names = {place.name for place in changed}
        # Without samples there is nothing to be computed from, and nothing is shown.
        if changed and (self._due or not names <= self.steady) and num_samples(tree, batch_dim):
            self._judge(changed, tree, run, batch_dim)
            self.steady |= names
        if self._due:
            for tensor in self._weights:
                self._contents.pop(id(tensor), None)
            self._due = False
        if changed:
            self.look()

    def _written_weights(self) -> list[Place]:
        return [
            place
            for place, tensor, number in zip(
                self._parameters, self._weights, self._weight_numbers, strict=True
            )
            if version(tensor) != number
            or (self._due and not same(tensor, self._contents[id(tensor)]))
        ]

    def _written_unseen(self, known: set[Address]) -> list[Place]:
        """Buffers and attributes whose values changed though nothing else did."""
        return [
            place
            for place in self._places
            if place.address not in known
            and any(not same(t, self._contents[id(t)]) for t in tensors_in(place.store[place.key]))
        ]

    def _judge(
        self, changed: list[Place], tree: Any, run: Callable[[Any], Any], batch_dim: int
    ) -> None:
        found = self._found()
        after = {p.address: p.store[p.key] for p in changed if p.key in p.store}
        verdict = judge(Replay(self.model, found, run), changed, after, tree, batch_dim)
        if verdict is None:
            return
        self._put_back(changed, found)
        self._due = False
        self._survey()
        raise PrivacyError(message(*verdict))

    def _found(self) -> dict[Address, Any]:
        """The state before the forward, as far as it is known; else the present one."""
        memo: dict[int, Any] = {}
        for tensor in (*self._tensors, *self._weights):
            if id(tensor) in self._contents:
                content = self._contents[id(tensor)].clone()
                is_parameter = isinstance(tensor, nn.Parameter)
                memo[id(tensor)] = (
                    nn.Parameter(content, tensor.requires_grad) if is_parameter else content
                )
        for value, before in self._containers:
            if not isinstance(before, int):
                memo[id(value)] = copied(before, memo)
        places = zip(self._places, self._values, strict=True)
        state = {p.address: copied(value, memo) for p, value in places if value is not _MISSING}
        for place in places_of(self.model):
            if place.kind == "parameter":
                state[place.address] = copied(place.store[place.key], memo)
        return state

    def _put_back(self, changed: list[Place], found: dict[Address, Any]) -> None:
        before = {p.address: v for p, v in zip(self._places, self._values, strict=True)}
        with torch.no_grad():
            for place in changed:
                if place.address not in found:
                    del place.store[place.key]
                    continue
                value, held = before.get(place.address, _MISSING), found[place.address]
                if value is _MISSING:
                    value = place.store[place.key]
                if isinstance(value, Tensor) and value.shape == held.shape:
                    value.data.copy_(held.data)
                    place.store[place.key] = value
                else:
                    place.store[place.key] = held

    def _calls(self) -> int:
        """How many forwards of the model are on the stack: a model may call itself."""
        frame, count = sys._getframe(1), 0
        while frame is not None:
            if frame.f_code is nn.Module._call_impl.__code__:
                count += frame.f_locals.get("self") is self.model
            frame = frame.f_back
        return count


def stored(place: Place) -> Any:
    return place.store[place.key] if place.key in place.store else _MISSING  # noqa: SIM401


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if type(value) in CONTAINERS and len(value) <= _LONG:
        return [part for part in elements(value) if isinstance(part, Tensor)]
    return []


def is_changed(container: Any, before: Any) -> bool:
    if isinstance(before, int):
        return len(container) != before
    if len(container) != len(before):
        return True
    return not all(map(is_, elements(container), elements(before)))


def message(place: Place, reason: str) -> str:
    what = (
        f"keeps values computed from its samples in the attribute '{place.name}' (a moving average"
        "?), and later forwards depend on them, unclipped and without noise"
        if place.kind == "attribute"
        else f"writes values computed from its samples into the {place.kind} '{place.name}' "
        "(running statistics, or a start from the first batch?), which would be released without "
        "noise"
    )
    return (
        f"the forward {what}{reason}. What was there before is there again. Switch that off "
        "(track_running_stats=False, no momentum updates), use GroupNorm, put the module into "
        "eval(), or compute it from public data before training."
    )
