"""Where private records lie: the memory of tensors and arrays, and the data sets around them.

Guarantees: a tensor or an array that shares memory with one of them is found, whatever view it is;
what was freed is not taken for a record's, because all of it is kept alive.
"""

from __future__ import annotations

import bisect
import copy
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from psac.gradients.errors import PrivacyError
from psac.gradients.isolation.reach import Reach
from psac.gradients.isolation.watch import storage_of

ATTRIBUTE = re.compile(r"\.([A-Za-z]\w*)")


class Memory:
    """Addresses: `address in memory`.  `memory | addresses` is a larger one.

    Attributes:
        objects: Data sets, by id.
    """

    def __init__(self, values: Iterable[Any] = (), objects: Iterable[Any] = ()) -> None:
        """`values` are tensors and arrays that hold records, `objects` the data sets."""
        self._alive = [*values, *objects]
        self.objects = {id(thing) for thing in objects}
        self._more: set[int] = set()
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted({span_of(value) for value in values} - {(0, 0)}):
            if self._ends and start < self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def __or__(self, addresses: set[int]) -> Memory:
        larger = copy.copy(self)
        larger._more = self._more | addresses
        return larger

    def __contains__(self, address: object) -> bool:
        if address in self._more:
            return True
        assert isinstance(address, int)
        place = bisect.bisect_right(self._starts, address) - 1
        return place >= 0 and address < self._ends[place]

    def __bool__(self) -> bool:
        return bool(self._alive)

    def has(self, value: Any) -> bool:
        """Whether the value is a data set, or lies in memory of one."""
        if id(value) in self.objects:
            return True
        return isinstance(value, (Tensor, np.ndarray)) and span_of(value)[0] in self


def span_of(value: Any) -> tuple[int, int]:
    """The memory of a tensor's storage, or of the array that owns an array's; from, to."""
    if isinstance(value, Tensor):
        start = storage_of(value)
        return (start, start + value.untyped_storage().nbytes()) if start else (0, 0)
    while isinstance(value.base, np.ndarray):
        value = value.base
    start = value.__array_interface__["data"][0]
    return (start, start + value.nbytes) if value.nbytes else (0, 0)


def refuse_private(reach: Reach, private: Memory) -> None:
    """Raises if a function reaches private records through something else than its arguments.

    An attribute that no code names, such as the data set of a trainer, is not one that it uses.
    """
    for path, value in reach.found if private else ():
        named = ATTRIBUTE.findall(path)
        if private.has(value) and not (named and named[-1] not in reach.names):
            raise PrivacyError(
                f"the loss function reaches {path}, a {type(value).__name__} that lies in the "
                "private batch or data set: it could see other records. Use the arguments of the "
                "function alone; it is given one record. What else it needs, such as a number of "
                "classes, give it as a value."
            )
