"""What a run asks of its workers, and the answer of a process that is alone."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from torch import Tensor

from psac.accounting import Ledger
from psac.noise.generators import NoiseGenerator, SecureGenerator, SeededGenerator

T = TypeVar("T")
Facts = Callable[[], Mapping[str, Any]]


class Run(Protocol):
    """What workers know of the run that they train."""

    @property
    def ledger(self) -> Ledger: ...

    def epsilon(self) -> float: ...


class Group(abc.ABC):
    """The workers of a run, as one of them sees them.  All call the same methods in one order.

    Attributes:
        rank: The number of this worker, from 0.
        size: How many there are.
    """

    rank: int
    size: int

    @abc.abstractmethod
    def follow(self, run: Run) -> None:
        """The run whose ledger tells what was spent; what it notes is noted by all workers."""

    @abc.abstractmethod
    def generator(self, seed: int | None) -> NoiseGenerator:
        """Gives all workers the same bits: secret ones, or those of the seed."""

    @abc.abstractmethod
    def own(self, generator: NoiseGenerator) -> NoiseGenerator:
        """Bits of this worker alone, for what each record must have by itself, such as dropout."""

    @abc.abstractmethod
    def renew(self, generator: NoiseGenerator) -> None:
        """A new secret for `generator`, and for all that it has spawned."""

    @abc.abstractmethod
    def meet(self, place: str, facts: Facts = dict) -> None:
        """Waits for all workers; raises on all of them if facts differ, or if one has refused."""

    @abc.abstractmethod
    def together(self, place: str) -> contextlib.AbstractContextManager[None]:
        """What one worker raises in here, the others raise where they meet next."""

    @abc.abstractmethod
    def silence(self) -> contextlib.AbstractContextManager[None]:
        """In here nobody talks to other workers: functions of the user's run."""

    @abc.abstractmethod
    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor becomes its sum over all workers, in place."""

    @abc.abstractmethod
    def most(self, value: int) -> int:
        """The largest value that a worker has."""

    @abc.abstractmethod
    def of_first(self, make: Callable[[], T]) -> T:
        """What worker 0 makes, for all."""

    @abc.abstractmethod
    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor becomes that of worker 0, in place."""


class Alone(Group):
    """One process: what workers would do together, it has done when it is asked."""

    rank, size = 0, 1

    def follow(self, run: Run) -> None: ...

    def generator(self, seed: int | None) -> NoiseGenerator:
        return SecureGenerator() if seed is None else SeededGenerator(seed)

    def own(self, generator: NoiseGenerator) -> NoiseGenerator:
        return generator

    def renew(self, generator: NoiseGenerator) -> None: ...

    def meet(self, place: str, facts: Facts = dict) -> None: ...

    def together(self, place: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def silence(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def add_up(self, tensors: Iterable[Tensor]) -> None: ...

    def most(self, value: int) -> int:
        return value

    def of_first(self, make: Callable[[], T]) -> T:
        return make()

    def spread(self, tensors: Iterable[Tensor]) -> None: ...
