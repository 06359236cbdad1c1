"""The workers of a run, as one of them sees them: processes of one `torch.distributed` group.

Tensors travel by the group's own backend (NCCL, gloo), everything else by gloo (`control`).
Whatever two workers exchange, they meet first (`psac.distributed.meeting`), so a worker that is
somewhere else, or has refused, is met and not waited for.

Guarantees:

- What one worker raises within `together`, all raise: itself at once, the others where they meet
  next.  Nobody waits for a worker that has refused.
- A worker that has ended, or does not answer within the group's timeout, ends the others with one
  sentence that says what was spent.
- Warnings and ways of evaluation that one worker writes in its ledger are in all ledgers after the
  next meeting.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from psac.accounting.pricing import quietly
from psac.distributed import sums
from psac.distributed.generators import KEY_BYTES, SharedGenerator
from psac.distributed.group import Facts, Group, Run
from psac.distributed.meeting import Meeting
from psac.distributed.silence import silence
from psac.errors import PrivacyError
from psac.noise.generators import NoiseGenerator, SecureGenerator, SeededGenerator

T = TypeVar("T")
Notes = tuple[tuple[str, ...], tuple[str, ...]]  # ways of evaluation, warnings


class WorkerLost(PrivacyError):
    """A worker has ended, or does not answer."""


class Workers(Group):
    """This process among the others of its group."""

    def __init__(self, tensors: Any, control: Any) -> None:
        """`tensors` is the group for sums on devices, `control` a gloo group of the same ranks."""
        self._tensors, self._control = tensors, control
        self.rank, self.size = dist.get_rank(tensors), dist.get_world_size(tensors)
        self._first = dist.get_global_rank(tensors, 0)
        self._run: Run | None = None
        self._noted: Notes = (), ()  # known to all
        self._raised: Exception | None = None  # known to all

    def follow(self, run: Run) -> None:
        self._run, self._noted = run, ((), ())

    # Random bits
    def generator(self, seed: int | None) -> NoiseGenerator:
        self.meet("make_private", lambda: {"seed": seed})
        if seed is not None:
            return SeededGenerator(seed)
        return SharedGenerator(self._secret())

    def own(self, generator: NoiseGenerator) -> NoiseGenerator:
        return SecureGenerator() if generator.secure else generator.spawn(f"worker {self.rank}")

    def renew(self, generator: NoiseGenerator) -> None:
        if isinstance(generator, SharedGenerator):
            generator.take(self._secret())

    def _secret(self) -> bytes:
        """Of worker 0's operating system."""
        self.meet("a new secret")
        data = os.urandom(KEY_BYTES) if self.rank == 0 else bytes(KEY_BYTES)
        secret = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with self._connected():
            dist.broadcast(secret, self._first, group=self._control)
        return secret.numpy().tobytes()

    # Agreement
    def meet(self, place: str, facts: Facts = dict) -> None:
        notes = self._notes()
        self._meet(Meeting(place, facts(), error=None, news=notes != self._noted))

    @contextlib.contextmanager
    def together(self, place: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if error is not self._raised and not isinstance(error, WorkerLost):
                self._raised = error
                with contextlib.suppress(WorkerLost):
                    self._meet(Meeting(place, {}, error=error, news=False))
            raise

    def _meet(self, meeting: Meeting) -> None:
        largest = meeting.vector()
        with self._connected():
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._control)
        finding = meeting.finding(largest)
        if finding is not None:
            accounts = self._gathered(meeting.account())
            if meeting.error is None:  # who has refused raises that
                self._raised = meeting.problem(finding, accounts)
                raise self._raised
        elif largest[1]:
            self._exchange_notes()

    def silence(self) -> contextlib.AbstractContextManager[None]:
        return silence()

    # Notes of the ledger
    def _notes(self) -> Notes:
        ledger = None if self._run is None else self._run.ledger
        return ((), ()) if ledger is None else (ledger.isolation, ledger.warnings)

    def _exchange_notes(self) -> None:
        for ways, warnings in self._gathered(self._notes()):
            for way in ways:
                self._ledger().note_way(way)
            for warning in warnings:
                self._ledger().note_warning(warning)
        self._noted = self._notes()

    def _ledger(self) -> Any:
        assert self._run is not None
        return self._run.ledger

    # Exchange
    def add_up(self, tensors: Iterable[Tensor]) -> None:
        with self._connected():
            sums.add_up(tensors, self._group_of)

    def spread(self, tensors: Iterable[Tensor]) -> None:
        with self._connected(), torch.no_grad():
            for tensor in map(sums.real, tensors):
                plain = tensor.contiguous()
                dist.broadcast(plain, self._first, group=self._group_of(tensor.device))
                if plain is not tensor:
                    tensor.copy_(plain)

    def most(self, value: int) -> int:
        self.meet("a question to all")
        answer = torch.tensor([value], dtype=torch.int64)
        with self._connected():
            dist.all_reduce(answer, dist.ReduceOp.MAX, group=self._control)
        return int(answer)

    def of_first(self, make: Callable[[], T]) -> T:
        values: list[Any] = [make() if self.rank == 0 else None]
        self.meet("what worker 0 knows")
        with self._connected():
            dist.broadcast_object_list(values, self._first, group=self._control)
        return values[0]

    def _group_of(self, device: torch.device) -> Any:
        return self._control if device.type == "cpu" else self._tensors

    def _gathered(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with self._connected():
            dist.all_gather_object(values, value, group=self._control)
        return values

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """What torch raises if a worker is gone, in one sentence."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise WorkerLost(
                f"another of the {self.size} workers has ended or does not answer ({reason}). "
                f"{self._spent()} Start all of them again, and load the last checkpoint: what was "
                "spent since then is counted."
            ) from None

    def _spent(self) -> str:
        if self._run is None:
            return "Nothing was spent."
        steps = self._run.ledger.steps
        try:
            with quietly():
                price = f", epsilon {self._run.epsilon():.3g}"
        except ValueError:  # no delta is known
            price = ""
        return f"{steps} steps were spent{price}."
