"""The batches of a private run: drawn by the private sampler, handed out one by one.

Guarantees: a physical batch is announced to the run before it is handed out, and the last one of
a logical batch releases the step; batches that workers have fetched ahead are dropped when a pass
ends early, so the sampler is saved as of the last released step.  A step is drawn once: whoever
leaves a pass and begins another gets the draws that were not released, and cannot choose among
batches by what is in them.

Of several processes each draws the same, and hands out its part, in equally many physical batches.
Where it has no record, it hands out one of another part, which stands in and does not count.
"""

from __future__ import annotations

import copy
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from psac import sampling
from psac.accounting import Ledger
from psac.checks import positive
from psac.distributed import Alone, Group
from psac.errors import PrivacyError
from psac.loading.collation import ByLength, Collated, DefaultCollate, Probe, ProbingCollate
from psac.loading.dataset import OneAtATime, loader_over
from psac.plan import Plan
from psac.sampling import Sampler


class Run(Protocol):
    """What a loader needs of the run that it draws for."""

    @property
    def plan(self) -> Plan: ...
    @property
    def ledger(self) -> Ledger: ...

    steps_taken: int

    def start_pass(self) -> None: ...
    def release(self) -> None: ...
    def refuse_left_out(self) -> None: ...
    def refuse_closed(self) -> None: ...


class HandOut(Protocol):
    """How a batch is announced to the run; nobody but its loader may do so."""

    def __call__(
        self, batch: Any, *, last: bool, probe: Probe | None = None, stands_in: bool = False
    ) -> None: ...


class Drawn(NamedTuple):
    """A logical batch: this process's part of it, the sampler after it, a number for all of it."""

    sizes: list[int]
    after: Sampler
    fingerprint: int


class Loader:
    """Batches as the private sampler draws them; iterate it as a DataLoader.

    One pass is one epoch: num_records / expected_batch_size logical steps on average, each of one
    or more physical batches.  For an empty draw, the loader takes a noise-only step itself.
    """

    def __init__(
        self,
        private: Run,
        hand_out: HandOut,
        data: Any,
        sampler: Sampler,
        physical_batch_size: int | None,
        lengths: Sequence[int] | None = None,
        group: Group | None = None,
    ) -> None:
        if physical_batch_size is not None:
            positive("physical_batch_size", physical_batch_size)
        self._private, self._hand_out = private, hand_out
        self._sampler, self._largest = sampler, physical_batch_size
        self._group = Alone() if group is None else group
        self.limits = {"physical_batch_size": physical_batch_size, "lengths": lengths}
        self.fingerprint = 0  # of the draw of the step in progress, of all workers
        self._ahead = copy.copy(sampler)  # draws ahead of training, for workers
        self._next = sampler  # as it is after the step in progress
        self._drawn: deque[Drawn] = deque()
        self._indices: deque[list[int]] = deque()
        self._left = 0  # steps of this pass that are not drawn yet
        # By number of the step, until it is released: its draw, and the sampler after it.
        self._draws: dict[int, tuple[Tensor, Sampler]] = {}
        self._pass = 0
        self._data = loader_over(data, _Batches(self._batches))
        collate = self._data.collate_fn
        if lengths:
            self._data.collate_fn = ByLength(collate, lengths)
        elif collate is default_collate:
            self._data.collate_fn = DefaultCollate()
        elif not is_trusted(collate):
            self._data.collate_fn = ProbingCollate(collate)
        self._workers = torch.Generator() if self._data.generator is None else None
        if self._workers is not None:
            self._data.generator = self._workers

    @property
    def dataset(self) -> Any:
        dataset = self._data.dataset
        return dataset.dataset if isinstance(dataset, OneAtATime) else dataset

    def __len__(self) -> int:
        """Number of logical steps in the current epoch."""
        return len(self._private.plan.steps_of_epoch_with(self._private.steps_taken))

    def __iter__(self) -> Iterator[Any]:
        for batches in self.steps():
            yield from batches

    def steps(self) -> Iterator[Iterator[Any]]:
        """The same pass by logical steps: each gives its physical batches, and must be used up.

        An empty draw gives none, and has been released when its step is used up.  So what counts
        logical steps, such as a schedule of learning rates, misses none:

            for batches in private.loader.steps():
                for batch in batches:
                    private.step(loss, batch)
                scheduler.step()
        """
        private, self._pass = self._private, self._pass + 1
        own_pass, steps = self._pass, self._steps_to_go()
        private.start_pass()
        self._ahead, self._left = copy.copy(self._sampler), steps
        self._drawn.clear()
        self._indices.clear()
        self._forget_draws_of_some()
        fetched = iter(self._reseeded())
        for _ in range(steps):
            self._check(own_pass)
            if not self._drawn:
                self._draw()
            batches = self._step(fetched, self._drawn.popleft(), own_pass)
            yield batches
            for _ in batches:  # the draw counts, whether its batches were asked for or not
                private.refuse_left_out()

    def _step(self, fetched: Iterator[Any], drawn: Drawn, own_pass: int) -> Iterator[Any]:
        sizes, after, self.fingerprint = drawn
        for k, size in enumerate(sizes):
            with self._group.together("private.loader"):
                parts = self._parts(next(fetched))
            self._next = after
            for j, (batch, probe) in enumerate(parts):
                last = k == len(sizes) - 1 and j == len(parts) - 1
                with self._group.together("private.loader"):
                    self._hand_out(batch, last=last, probe=probe, stands_in=not size)
                yield batch
                with self._group.together("private.loader"):
                    self._check(own_pass)
        if not sizes:
            self._next = after
            self._private.release()

    def _forget_draws_of_some(self) -> None:
        """What one process has drawn further ahead than another is drawn anew, by all alike."""
        common = -self._group.most(-len(self._draws))
        for number in sorted(self._draws)[common:]:
            del self._draws[number]

    def _parts(self, collated: Any) -> list[tuple[Any, Probe | None]]:
        """Batches with their probes: one, or one for each of the public lengths."""
        if isinstance(self._data.collate_fn, ByLength):
            return [(batch, None) for batch in collated]
        if isinstance(collated, Collated):
            return [(collated.batch, collated.probe)]
        return [(collated, None)]

    def _reseeded(self) -> DataLoader:
        """The DataLoader, whose workers draw from a stream of this step.

        With torch's own generator a resumed run would differ.
        """
        if self._workers is not None:
            own = self._group.own(self._sampler.generator)
            stream = own.spawn(f"workers {self._private.steps_taken}")
            self._workers.manual_seed(int.from_bytes(stream.random_bytes(7), "big"))
        return self._data

    def _steps_to_go(self) -> int:
        private = self._private
        private.refuse_closed()
        left = private.plan.steps - private.ledger.steps
        if left <= 0:
            raise PrivacyError(
                f"the {private.plan.steps} planned steps are done. More training costs more "
                "privacy: private.extend(epochs=...) plans it and returns the new epsilon."
            )
        epoch = private.plan.steps_of_epoch_with(private.steps_taken)
        return min(epoch.stop - private.steps_taken, left)

    def _batches(self) -> Iterator[list[int]]:
        while self._indices or self._left:
            if self._indices:
                yield self._indices.popleft()
            else:
                self._draw()

    def _draw(self) -> None:
        number = self._ahead.steps_drawn
        if number not in self._draws:
            self._draws[number] = self._ahead.draw(), copy.copy(self._ahead)
        draw, after = self._draws[number]
        self._ahead, group = copy.copy(after), self._group
        batches = sampling.physical_batches(draw, self._largest, group.rank, group.size)
        self._left -= 1
        self._indices += [batch or draw[:1].tolist() for batch in batches]
        sizes, fingerprint = [len(batch) for batch in batches], zlib.crc32(draw.numpy().tobytes())
        self._drawn.append(Drawn(sizes, after, fingerprint))

    def _check(self, own_pass: int) -> None:
        if self._pass != own_pass:
            raise PrivacyError(
                "a new pass over private.loader has begun, so this one cannot continue."
            )
        self._private.refuse_left_out()

    def advance(self) -> None:
        """The step in progress was released."""
        self._sampler = self._next
        released = [number for number in self._draws if number < self._sampler.steps_drawn]
        for number in released:
            del self._draws[number]

    def skip(self, steps: int, bins: int) -> int:
        """Skips steps, up to the end of an epoch if they reach one; returns how many."""
        self._draws = {}
        start = self._sampler.steps_drawn
        end = start + steps
        if end // bins > start // bins:
            end = -(-end // bins) * bins
        for _ in range(end - start):
            self._sampler.draw()
        return end - start

    def state_dict(self) -> dict[str, Any]:
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draws = {}
        self._sampler.load_state_dict(state)


def is_trusted(collate: Any) -> bool:
    """Whether it is known to keep records apart."""
    return getattr(collate, "__module__", "").startswith("psac.")


class _Batches:
    """What the DataLoader fetches: the physical batches of a pass, one list of numbers each."""

    def __init__(self, batches: Callable[[], Iterator[list[int]]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches()
